#include "core/http/connection.h"

#include <curl/curl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>

#include "core/base/variables.h"
#include "core/base/version.h"
#include "core/http/fields.h"

namespace dsec::http {
namespace {

constexpr std::uint64_t kLargestHead = 256 << 10;
// Bytes per second. What stays below for as long as nothing at all may come is as good as dead.
constexpr long kSlowest = 1024;
// Of what a server says about a failure.
constexpr std::uint64_t kLargestComplaint = 64 << 10;

/// OpenSSL writes to sockets without MSG_NOSIGNAL, and libcurl's own protection changes the whole process.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    if (::sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    while (::sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
};

}  // namespace

struct Connection::Handle {
  CURL* curl = nullptr;
};

struct Connection::State {
  const Request& request;
  Download* download;
  const ClientOptions& options;
  const std::atomic<bool>& cancelled;
  Outcome outcome;
  std::exception_ptr thrown;
  std::uint64_t head_bytes = 0, sent = 0, to_skip = 0;
  bool body_begun = false, into_download = false;
  char error[CURL_ERROR_SIZE] = {};
  curl_slist* headers = nullptr;

  ~State() { ::curl_slist_free_all(headers); }

  bool refuse(const std::string& reason) {
    outcome.failure = Failure::Final;
    outcome.reason = reason;
    return false;
  }

  bool take_header(std::string_view line) {
    Answer& answer = outcome.answer;
    if (line.starts_with("HTTP/")) {  // also of the interim answers that come before the real one
      answer.headers.clear();
      const std::size_t blank = line.find(' ');
      answer.status = blank == std::string_view::npos ? 0 : std::atoi(std::string(line.substr(blank + 1)).c_str());
      answer.reason = blank == std::string_view::npos || line.size() < blank + 5 ? "" : trimmed(line.substr(blank + 5));
      head_bytes = 0;
    }
    head_bytes += line.size();
    if (head_bytes > kLargestHead) return refuse("the headers of the answer are larger than 256 KiB");
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos && !line.starts_with("HTTP/"))
      answer.headers.emplace_back(trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
    return true;
  }

  // Notes which version of the resource this is. False when it is another than the one that was begun with.
  bool is_same_version() {
    const std::string* etag = outcome.answer.header("ETag");
    if (!etag || !etag->starts_with('"') || *etag == download->etag) return true;
    if (download->etag.empty()) {
      download->etag = *etag;
      return true;
    }
    outcome.hint = "again, from the start; servers behind one name must agree on ETags";
    return refuse("it changed while it was read: its ETag is " + quote(*etag) + " and no longer " +
                  quote(download->etag));
  }

  // Decides where the body goes, once the headers are there. False when it cannot be taken.
  bool begin_body() {
    body_begun = true;
    const Answer& answer = outcome.answer;
    into_download = download && (answer.status == 200 || answer.status == 206);
    if (download && answer.ok() && !into_download)
      return refuse("it was answered with " + std::to_string(answer.status) +
                    (answer.reason.empty() ? "" : " " + answer.reason) + " and not with what it holds");
    if (!into_download) return true;
    if (answer.status == 206) {
      const std::string* text = answer.header("Content-Range");
      const auto range = text ? parse_content_range(*text) : std::nullopt;
      if (!range || range->first != download->first() + download->done())
        return refuse("the server sent another part than was asked for: Content-Range " +
                      (text ? quote(*text) : std::string("is missing")));
      if (range->total && *range->total != download->whole())
        return refuse("the server has " + std::to_string(*range->total) + " bytes instead of " +
                      std::to_string(download->whole()));
      return is_same_version();
    }
    const std::string* length = answer.header("Content-Length");
    if (length && number(*length) != download->whole())
      return refuse("the server has " + *length + " bytes instead of " + std::to_string(download->whole()));
    if (download->is_part() && !is_same_version()) return false;
    if (download->is_part())
      return refuse("the server sends the whole where a part was asked for: it knows no ranges, or it changed");
    to_skip = download->done();
    const std::string* etag = answer.header("ETag");
    download->etag = etag && etag->starts_with('"') ? *etag : "";
    return true;
  }

  bool take_body(std::string_view piece) {
    if (!body_begun && !begin_body()) return false;
    if (!into_download) {
      std::string& body = outcome.answer.body;
      if (outcome.answer.ok() && body.size() + piece.size() > options.largest_document)
        return refuse("the answer is larger than " + std::to_string(options.largest_document) + " bytes");
      if (!outcome.answer.ok()) piece = piece.substr(0, kLargestComplaint - std::min(kLargestComplaint, body.size()));
      body += piece;
      return true;
    }
    const std::size_t skipped = std::min<std::uint64_t>(to_skip, piece.size());
    to_skip -= skipped;
    piece.remove_prefix(skipped);
    if (piece.size() > download->size() - download->done())
      return refuse("the server sends more than the " + std::to_string(download->size()) + " bytes that were expected");
    if (!piece.empty()) download->take(piece);
    return true;
  }

  std::size_t give_body(char* out, std::size_t room) {
    const Body& body = request.body;
    const std::size_t want = std::min<std::uint64_t>(room, body.size() - sent);
    if (want == 0) return 0;
    if (body.fd < 0) {
      std::memcpy(out, body.text.data() + sent, want);
      sent += want;
      return want;
    }
    ssize_t got;
    do got = ::pread(body.fd, out, want, static_cast<off_t>(body.offset + sent));
    while (got < 0 && errno == EINTR);
    if (got < 0) throw system_error("read what is to be sent");
    if (got == 0) throw failure("the file became shorter while it was sent");
    sent += static_cast<std::uint64_t>(got);
    if (body.advance) body.advance(sent);
    return static_cast<std::size_t>(got);
  }

  // No exception may pass through libcurl.
  template <typename Action>
  auto guarded(decltype(std::declval<Action>()()) on_throw, Action&& action) noexcept {
    try {
      return action();
    } catch (...) {
      thrown = std::current_exception();
      return on_throw;
    }
  }
};

namespace {

// The callbacks know the state by these alone, since its type is private.
struct Callbacks {
  std::function<bool(std::string_view)> header, body;
  std::function<std::size_t(char*, std::size_t)> read;
  std::function<bool(std::uint64_t)> seek;
  std::function<bool()> go_on;
};

extern "C" {
std::size_t on_header(char* data, std::size_t, std::size_t size, void* user) {
  return static_cast<Callbacks*>(user)->header({data, size}) ? size : 0;
}
std::size_t on_body(char* data, std::size_t, std::size_t size, void* user) {
  return static_cast<Callbacks*>(user)->body({data, size}) ? size : 0;
}
std::size_t on_read(char* out, std::size_t, std::size_t room, void* user) {
  return static_cast<Callbacks*>(user)->read(out, room);
}
int on_seek(void* user, curl_off_t offset, int origin) {
  const bool done = origin == SEEK_SET && static_cast<Callbacks*>(user)->seek(static_cast<std::uint64_t>(offset));
  return done ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}
int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Callbacks*>(user)->go_on() ? 0 : 1;
}
}

void set_trust(CURL* curl, const HostTrust& trust) {
  if (!trust.ca_pem.empty()) {
    // Beside the system's, which libcurl finds in its directory of certificates.
    curl_blob blob{const_cast<char*>(trust.ca_pem.data()), trust.ca_pem.size(), CURL_BLOB_COPY};
    ::curl_easy_setopt(curl, CURLOPT_CAINFO_BLOB, &blob);
  } else if (const std::string file = variable("SSL_CERT_FILE"); !file.empty()) {
    ::curl_easy_setopt(curl, CURLOPT_CAINFO, file.c_str());
  }
  if (const std::string directory = variable("SSL_CERT_DIR"); !directory.empty())
    ::curl_easy_setopt(curl, CURLOPT_CAPATH, directory.c_str());
  if (trust.client_certificate.empty()) return;
  ::curl_easy_setopt(curl, CURLOPT_SSLCERT, trust.client_certificate.c_str());
  ::curl_easy_setopt(curl, CURLOPT_SSLKEY, trust.client_key.c_str());
}

long seconds_of(std::chrono::milliseconds time) {
  return std::max<long>(1, static_cast<long>((time.count() + 999) / 1000));
}

}  // namespace

Connection::Connection() : handle_(std::make_unique<Handle>()) {
  static std::once_flag once;
  std::call_once(once, [] { ::curl_global_init(CURL_GLOBAL_DEFAULT); });
  handle_->curl = ::curl_easy_init();
  if (!handle_->curl) throw std::bad_alloc();
}

Connection::~Connection() { ::curl_easy_cleanup(handle_->curl); }

void Connection::prepare(State& state, const HostTrust& trust) {
  CURL* const curl = handle_->curl;
  const Request& request = state.request;
  const auto set = [&](CURLoption option, auto value) { ::curl_easy_setopt(curl, option, value); };
  ::curl_easy_reset(curl);
  set(CURLOPT_ERRORBUFFER, state.error);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_URL, request.url.str().c_str());
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  // One transfer per connection is all that is needed, and its flow control is the kernel's.
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_USERAGENT, (std::string("dsec/") + kVersion).c_str());
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(state.options.connect_timeout.count()));
  set(CURLOPT_LOW_SPEED_LIMIT, kSlowest);
  set(CURLOPT_LOW_SPEED_TIME, seconds_of(state.options.stall_timeout));
  set(CURLOPT_BUFFERSIZE, 256L << 10);
  set(CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  if (request.url.is_loopback()) set(CURLOPT_PROXY, "");
  set_trust(curl, trust);

  const auto add = [&](const std::string& line) {
    if (curl_slist* more = ::curl_slist_append(state.headers, line.c_str())) state.headers = more;
  };
  for (const auto& [name, value] : request.headers) add(name + ": " + value);
  if (!request.authorization.empty()) add("Authorization: " + request.authorization);
  if (const AwsSignature* signature = request.signature.get()) {
    // Without it libcurl would send the secret itself, as a password.
    const std::string scheme = "aws:amz:" + signature->region + ":" + signature->service;
    if (const CURLcode code = ::curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, scheme.c_str()); code != CURLE_OK)
      throw failure("this libcurl cannot sign requests for AWS: " + std::string(::curl_easy_strerror(code)));
    set(CURLOPT_USERNAME, signature->key_id.c_str());
    set(CURLOPT_PASSWORD, signature->secret.c_str());
    if (!signature->session_token.empty()) add("x-amz-security-token: " + signature->session_token);
  }
  if (const Download* download = state.download; download && (download->is_part() || download->done() > 0)) {
    const std::uint64_t end = download->first() + download->size();
    add("Range: bytes=" + std::to_string(download->first() + download->done()) + "-" +
        (end == download->whole() ? "" : std::to_string(end - 1)));
    if (!download->etag.empty()) add("If-Range: " + download->etag);
  }
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.method != "GET") {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  set(CURLOPT_HTTPHEADER, state.headers);
}

void Connection::judge(State& state, int code) {
  Outcome& outcome = state.outcome;
  if (state.thrown) std::rethrow_exception(state.thrown);
  if (outcome.failure != Failure::None) return;
  if (code == CURLE_OK) {
    const Download* download = state.download;
    if (!state.body_begun && !state.begin_body()) return;  // an answer without a body
    if (!state.into_download || download->complete()) return;
    outcome.failure = Failure::Broken;
    outcome.reason = "the answer ended after " + std::to_string(download->done()) + " of " +
                     std::to_string(download->size()) + " bytes";
    return;
  }
  const std::string text = state.error[0] ? state.error : ::curl_easy_strerror(static_cast<CURLcode>(code));
  long number = 0;
  ::curl_easy_getinfo(handle_->curl, CURLINFO_OS_ERRNO, &number);
  curl_off_t connected = 0;
  ::curl_easy_getinfo(handle_->curl, CURLINFO_PRETRANSFER_TIME_T, &connected);
  const std::string host = state.request.url.authority();
  outcome.failure = Failure::Broken;
  outcome.reason = text;
  switch (code) {
    case CURLE_ABORTED_BY_CALLBACK:
      outcome.failure = Failure::Cancelled;
      break;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      outcome.failure = Failure::Unreachable;
      break;
    case CURLE_COULDNT_CONNECT:
      outcome.failure = Failure::Unreachable;
      if (number) outcome.reason = "connect to " + host + ": " + errno_text(static_cast<int>(number));
      break;
    case CURLE_OPERATION_TIMEDOUT:
      if (connected == 0) {
        outcome.failure = Failure::Unreachable;
        outcome.reason = "there was no connection to " + host + " within " +
                         std::to_string(seconds_of(state.options.connect_timeout)) + " s";
      } else {
        outcome.reason = "nothing came for " + std::to_string(seconds_of(state.options.stall_timeout)) + " s";
      }
      break;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
      outcome.failure = Failure::Final;
      outcome.reason = "the certificate of " + host + " is not accepted: " + text;
      outcome.hint = "'ca: FILE' for " + host + " under 'hosts' of config.yaml, dsec-home(5)";
      break;
    case CURLE_SSL_CONNECT_ERROR:
      if (text.find("wrong version number") == std::string::npos && text.find("packet length") == std::string::npos)
        break;
      outcome.failure = Failure::Final;
      outcome.reason = host + " does not speak TLS: " + text;
      outcome.hint = "'plain_http: true' for " + host + " under 'hosts' of config.yaml, dsec-home(5)";
      break;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_FAILED_INIT:
    case CURLE_OUT_OF_MEMORY:
      outcome.failure = Failure::Final;
      break;
    default:
      if (state.download && connected != 0)
        outcome.reason += ", after " + std::to_string(state.download->done()) + " of " +
                          std::to_string(state.download->size()) + " bytes";
  }
}

Outcome Connection::exchange(const Request& request, Download* download, const HostTrust& trust,
                             const ClientOptions& options, const std::atomic<bool>& cancelled) {
  State state{request, download, options, cancelled, {}, {}};
  state.outcome.answer.url = request.url;
  prepare(state, trust);
  Callbacks callbacks{
      [&](std::string_view line) { return state.guarded(false, [&] { return state.take_header(line); }); },
      [&](std::string_view piece) { return state.guarded(false, [&] { return state.take_body(piece); }); },
      [&](char* out, std::size_t room) {
        return state.guarded(std::size_t{CURL_READFUNC_ABORT}, [&] { return state.give_body(out, room); });
      },
      [&](std::uint64_t offset) {
        state.sent = offset;
        return offset <= request.body.size();
      },
      [&] { return !cancelled; }};
  CURL* const curl = handle_->curl;
  ::curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  ::curl_easy_setopt(curl, CURLOPT_HEADERDATA, &callbacks);
  ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &callbacks);
  ::curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_read);
  ::curl_easy_setopt(curl, CURLOPT_READDATA, &callbacks);
  ::curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek);
  ::curl_easy_setopt(curl, CURLOPT_SEEKDATA, &callbacks);
  ::curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  ::curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &callbacks);
  ::curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  const WithoutSigpipe guard;
  const CURLcode code = ::curl_easy_perform(curl);
  judge(state, code);
  return std::move(state.outcome);
}

}  // namespace dsec::http
