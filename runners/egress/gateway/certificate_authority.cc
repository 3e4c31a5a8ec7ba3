#include "runners/egress/gateway/certificate_authority.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "core/base/error.h"
#include "core/model/ip_address.h"
#include "runners/egress/gateway/tls_error.h"

namespace dsec::egress {
namespace {

constexpr long kDay = 24 * 60 * 60, kYears = 10 * 365 * kDay;
constexpr std::size_t kMostHosts = 1024, kLongestCommonName = 64;
constexpr int kX509v3 = 2;  // versions are counted from 0

using Certificate = CertificateAuthority::Certificate;
using Key = CertificateAuthority::Key;

void must(bool done) {
  if (!done) throw failure("certificates: " + tls_error());
}

struct FreeBio {
  void operator()(BIO* bio) const { ::BIO_free(bio); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;

Key new_key() {
  Key key(::EVP_EC_gen("P-256"));
  must(key != nullptr);
  return key;
}

void add_extension(X509* certificate, X509* issuer, int which, const std::string& value) {
  X509V3_CTX context;
  ::X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = ::X509V3_EXT_conf_nid(nullptr, &context, which, value.c_str());
  must(extension != nullptr);
  const bool added = ::X509_add_ext(certificate, extension, -1) == 1;
  ::X509_EXTENSION_free(extension);
  must(added);
}

void set_name(X509_NAME* name, const char* field, const std::string& value) {
  must(::X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(value.data()),
                                    static_cast<int>(value.size()), -1, 0) == 1);
}

// Without extensions and signature.
Certificate new_certificate(EVP_PKEY* key) {
  Certificate certificate(::X509_new());
  must(certificate != nullptr);
  unsigned char serial[16];
  must(::RAND_bytes(serial, sizeof serial) == 1);
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7f) | 0x40);  // positive, and of this length
  BIGNUM* const number = ::BN_bin2bn(serial, sizeof serial, nullptr);
  must(number != nullptr);
  const bool numbered = ::BN_to_ASN1_INTEGER(number, ::X509_get_serialNumber(certificate.get())) != nullptr;
  ::BN_free(number);
  // From yesterday on: the clock of a sandbox may be told to be another.
  must(numbered && ::X509_set_version(certificate.get(), kX509v3) == 1 &&
       ::X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kDay) &&
       ::X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kYears) &&
       ::X509_set_pubkey(certificate.get(), key) == 1);
  return certificate;
}

void sign(X509* certificate, EVP_PKEY* key) { must(::X509_sign(certificate, key, ::EVP_sha256()) > 0); }

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = ::BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

}  // namespace

void CertificateAuthority::FreeCertificate::operator()(x509_st* certificate) const { ::X509_free(certificate); }
void CertificateAuthority::FreeKey::operator()(evp_pkey_st* key) const { ::EVP_PKEY_free(key); }

std::string CertificateAuthority::make(const std::string& sandbox) {
  const Key key = new_key();
  const Certificate certificate = new_certificate(key.get());
  X509_NAME* const name = ::X509_get_subject_name(certificate.get());
  set_name(name, "O", "dsec");
  set_name(name, "CN", "dsec interception " + sandbox.substr(0, 32));
  must(::X509_set_issuer_name(certificate.get(), name) == 1);
  add_extension(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(certificate.get(), certificate.get(), NID_subject_key_identifier, "hash");
  sign(certificate.get(), key.get());
  const Bio bio(::BIO_new(::BIO_s_mem()));
  must(bio && ::PEM_write_bio_PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1 &&
       ::PEM_write_bio_X509(bio.get(), certificate.get()) == 1);
  return text_of(bio.get());
}

CertificateAuthority::CertificateAuthority(std::string pem) : pem_(std::move(pem)), host_key_(new_key()) {
  const Bio bio(::BIO_new_mem_buf(pem_.data(), static_cast<int>(pem_.size())));
  must(bio != nullptr);
  key_.reset(::PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  certificate_.reset(::PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  must(key_ && certificate_);
}

std::string CertificateAuthority::certificate_pem() const {
  const Bio bio(::BIO_new(::BIO_s_mem()));
  must(bio && ::PEM_write_bio_X509(bio.get(), certificate_.get()) == 1);
  return text_of(bio.get());
}

x509_st* CertificateAuthority::certificate_for(const std::string& host) {
  if (const auto found = hosts_.find(host); found != hosts_.end()) return found->second.get();
  // A sandbox may ask for as many names as it likes.
  if (hosts_.size() >= kMostHosts) hosts_.clear();
  Certificate certificate = new_certificate(host_key_.get());
  set_name(::X509_get_subject_name(certificate.get()), "CN",
           host.size() <= kLongestCommonName ? host : std::string("a host of dsec"));
  must(::X509_set_issuer_name(certificate.get(), ::X509_get_subject_name(certificate_.get())) == 1);
  const bool address = IpAddress::parse(host).has_value();
  add_extension(certificate.get(), certificate_.get(), NID_basic_constraints, "critical,CA:FALSE");
  add_extension(certificate.get(), certificate_.get(), NID_key_usage, "critical,digitalSignature");
  add_extension(certificate.get(), certificate_.get(), NID_ext_key_usage, "serverAuth");
  add_extension(certificate.get(), certificate_.get(), NID_subject_alt_name, (address ? "IP:" : "DNS:") + host);
  add_extension(certificate.get(), certificate_.get(), NID_subject_key_identifier, "hash");
  add_extension(certificate.get(), certificate_.get(), NID_authority_key_identifier, "keyid:always");
  sign(certificate.get(), key_.get());
  return hosts_.emplace(host, std::move(certificate)).first->second.get();
}

}  // namespace dsec::egress
