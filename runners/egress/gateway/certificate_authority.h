#pragma once

#include <memory>
#include <string>
#include <unordered_map>

struct evp_pkey_st;
struct x509_st;

namespace dsec::egress {

/// The certificate authority of one sandbox whose TLS is intercepted, and the certificates that it made for hosts. Its
/// key is in the memory of the gateway and nowhere else.
class CertificateAuthority {
 public:
  /// A new one for `sandbox`, as pem() gives it. Throws Error.
  static std::string make(const std::string& sandbox);
  /// Throws Error when `pem` is none.
  explicit CertificateAuthority(std::string pem);

  /// With its key.
  const std::string& pem() const { return pem_; }
  std::string certificate_pem() const;

  struct FreeCertificate {
    void operator()(x509_st* certificate) const;
  };
  struct FreeKey {
    void operator()(evp_pkey_st* key) const;
  };
  using Certificate = std::unique_ptr<x509_st, FreeCertificate>;
  using Key = std::unique_ptr<evp_pkey_st, FreeKey>;

  /// For a host name or address; made when it is first asked for. Throws Error. Valid until the next call.
  x509_st* certificate_for(const std::string& host);
  /// The key of all those.
  evp_pkey_st* host_key() const { return host_key_.get(); }

 private:
  const std::string pem_;
  Key key_, host_key_;
  Certificate certificate_;
  std::unordered_map<std::string, Certificate> hosts_;
};

}  // namespace dsec::egress
