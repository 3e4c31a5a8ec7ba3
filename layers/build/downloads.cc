#include "layers/build/downloads.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/http/client.h"
#include "core/http/shown_url.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

constexpr std::time_t kForgottenAfter = 30 * 24 * 3600;
// Of an answer that does not tell its size beforehand, which is kept in memory.
constexpr std::uint64_t kLargestUnannounced = 256ull << 20;

http::ClientOptions client_options(Progress& progress) {
  http::ClientOptions options;
  options.largest_document = kLargestUnannounced;
  // A Dockerfile names the scheme itself, and a checksum makes up for what http: does not promise.
  options.trust = [hosts = Config::load().hosts](const std::string& authority) {
    http::HostTrust trust{.plain_http = true};
    for (const HostEntry& entry : hosts)
      if (entry.host == authority && !entry.ca.empty()) trust.ca_pem = read_file(entry.ca);
    return trust;
  };
  options.notice = [&progress](const std::string& message) { progress.warn(message); };
  return options;
}

std::optional<std::uint64_t> length_of(const http::Answer& answer) {
  const std::string* text = answer.header("Content-Length");
  std::uint64_t value = 0;
  if (!text) return std::nullopt;
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, value);
  return error == std::errc() && at == end ? std::optional(value) : std::nullopt;
}

/// What is known of a URL.
struct Known {
  std::string etag;
  Digest digest;
};

// A record that cannot be understood is as good as none.
std::optional<Known> known_of(const fs::path& record) {
  try {
    const Json json = parse_json(read_file(record, 64 << 10), record.native());
    return Known{json_string(json, "etag"), Digest::parse(json_string(json, "digest"))};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

/// Everything that asks a server; made when it is needed first.
class Downloads::Fetching {
 public:
  Fetching(const fs::path& directory, Progress& progress)
      : directory_(directory), progress_(progress), client_(client_options(progress)) {}

  Digest look_up(const std::string& text, const std::optional<Known>& known) {
    const http::Url url = http::Url::parse(text);
    http::Answer head = client_.send({.method = "HEAD", .url = url});
    const std::string* etag = head.header("ETag");
    if (head.ok() && known && etag && *etag == known->etag && !etag->starts_with("W/")) return known->digest;
    return fetch(text, head.ok() ? length_of(head) : std::nullopt);
  }

  Digest fetch(const std::string& text, std::optional<std::uint64_t> size) {
    const http::Url url = http::Url::parse(text);
    const std::string step = "download " + url.shown();
    progress_.begin(step);
    TempFile file(directory_);
    Sha256 hash;
    std::uint64_t done = 0;
    const auto take = [&](std::string_view piece) {
      write_all(file.fd(), piece);
      hash.update(piece);
      done += piece.size();
      progress_.advance(step, done, size.value_or(0));
    };
    const http::Request request{.url = url};
    std::string etag;
    if (size && *size > 0) {
      http::Download download(*size, take);
      const http::Answer answer = client_.send(request, &download);
      if (!answer.ok()) throw http::answer_error(request, answer);
      etag = download.etag;
    } else {
      const http::Answer answer = client_.send(request);
      if (!answer.ok()) throw http::answer_error(request, answer);
      take(answer.body);
      if (const std::string* strong = answer.header("ETag"); strong && !strong->starts_with("W/")) etag = *strong;
    }
    const Digest digest = hash.finish();
    file.publish(directory_ / digest.hex());
    write_file_atomic(directory_ / ("url-" + Digest::of(text).hex()),
                      canonical_json({{"etag", etag}, {"digest", digest.str()}}), 0600);
    progress_.end(step, format_size(done));
    return digest;
  }

 private:
  const fs::path& directory_;
  Progress& progress_;
  http::Client client_;
};

Downloads::Downloads(fs::path directory, bool offline, Progress& progress)
    : directory_(std::move(directory)), offline_(offline), progress_(progress) {}
Downloads::~Downloads() = default;

Digest Downloads::look_up(const std::string& url) {
  const std::lock_guard guard(mutex_);
  make_directories(directory_, 0700);
  const fs::path record = directory_ / ("url-" + Digest::of(url).hex());
  std::optional<Known> known;
  if (fs::exists(record)) known = known_of(record);
  if (known && !fs::exists(directory_ / known->digest.hex())) known.reset();
  if (known) ::utimensat(AT_FDCWD, record.c_str(), nullptr, 0);
  if (offline_) {
    if (known) return known->digest;
    throw usage_error(quote(http::shown_url(url)) + " was never fetched, and fetching it needs a network")
        .hint("dsec build without --offline");
  }
  if (!fetching_) fetching_ = std::make_unique<Fetching>(directory_, progress_);
  return fetching_->look_up(url, known);
}

UniqueFd Downloads::open(const std::string& url, const Digest& digest) {
  const std::lock_guard guard(mutex_);
  make_directories(directory_, 0700);
  const fs::path file = directory_ / digest.hex();
  if (!fs::exists(file)) {
    if (offline_)
      throw usage_error(quote(http::shown_url(url)) + " is not here, and fetching it needs a network")
          .hint("dsec build without --offline");
    if (!fetching_) fetching_ = std::make_unique<Fetching>(directory_, progress_);
    if (const Digest found = fetching_->look_up(url, std::nullopt); found != digest)
      throw failure(quote(http::shown_url(url)) + " has " + found.str() + ", not " + digest.str());
  }
  UniqueFd fd = open_file(file, O_RDONLY);
  ::futimens(fd.get(), nullptr);
  return fd;
}

void Downloads::prune(const fs::path& directory, bool all) {
  std::error_code none;
  for (fs::directory_iterator at(directory, none), end; !none && at != end; at.increment(none)) {
    struct stat status;
    if (::lstat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (at->path().filename().native().starts_with(".tmp-")) continue;
    if (all || status.st_mtime + kForgottenAfter < std::time(nullptr)) ::unlink(at->path().c_str());
  }
}

std::string file_name_of(const std::string& url) {
  const std::string target = http::Url::parse(url).target;
  const std::string path = target.substr(0, target.find_first_of("?#"));
  const std::string name = path.substr(path.rfind('/') + 1);
  return name == "." || name == ".." ? "" : name;
}

}  // namespace dsec::layers
