#include "registry/web/object_place.h"

#include "core/base/error.h"
#include "core/http/fields.h"
#include "core/http/retry.h"
#include "registry/layout/catalogue.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace {

// Blobs and manifests never change, whatever caches there are on the way.
bool may_change(const std::string& name) { return !name.starts_with(kBlobs) && !name.starts_with(kManifests); }

}  // namespace

WebAccess::WebAccess(const Config& config, http::ClientOptions options, const Alias& alias)
    : hosts(config), client([&] {
        options.trust = [this, alias](const std::string& authority) {
          return hosts.trust(authority == alias.asked ? alias.known : authority);
        };
        return std::move(options);
      }()) {}

http::ClientOptions patient(std::function<void(const std::string&)> notice) {
  http::ClientOptions options;
  options.largest_document = kLargestCatalogue;
  options.notice = std::move(notice);
  return options;
}

http::ClientOptions impatient() {
  http::ClientOptions options;
  options.connect_timeout = options.stall_timeout = std::chrono::seconds(5);
  options.retry.tries = 1;
  return options;
}

std::string escaped_name(const std::string& name) {
  std::string out;
  for (const char c : name) out += c == '+' ? "%2B" : std::string(1, c);
  return out;
}

http::Request ObjectPlace::request(const char* method, const std::string& name) const {
  http::Request request;
  request.method = method;
  request.url = url(name);
  if (may_change(name)) request.headers.emplace_back("Cache-Control", "no-cache");
  return request;
}

std::optional<http::Answer> ObjectPlace::ask(const http::Request& request, http::Download* download) const {
  http::Answer answer = send(request, download);
  if (answer.ok()) return answer;
  Error error = refusal(request, answer);
  // What a missing bucket answers is no missing file.
  if ((answer.status == 404 || answer.status == 410) && error.kind() != ErrorKind::Usage) return std::nullopt;
  throw error;
}

std::optional<std::string> ObjectPlace::read_file(const std::string& name, std::uint64_t limit, Missing) const {
  const auto answer = ask(request("GET", name), nullptr);
  if (!answer) return std::nullopt;
  if (answer->body.size() > limit)
    throw failure(url(name).shown() + " has " + std::to_string(answer->body.size()) + " bytes, more than " +
                  std::to_string(limit));
  return answer->body;
}

bool ObjectPlace::has_file(const std::string& name, Missing) const {
  return ask(request("HEAD", name), nullptr).has_value();
}

std::optional<std::uint64_t> ObjectPlace::size(const std::string& name) const {
  const http::Request asked = request("HEAD", name);
  const auto answer = ask(asked, nullptr);
  if (!answer) return std::nullopt;
  const std::string* length = answer->header("Content-Length");
  const auto bytes = length ? http::number(*length) : std::nullopt;
  if (!bytes) throw failure("the answer to HEAD " + asked.url.shown() + " tells no size");
  return bytes;
}

std::optional<std::chrono::system_clock::time_point> ObjectPlace::modified(const std::string& name) const {
  const http::Request asked = request("HEAD", name);
  const auto answer = ask(asked, nullptr);
  if (!answer) return std::nullopt;
  const std::string* date = answer->header("Last-Modified");
  const auto time = date ? http::parse_date(*date) : std::nullopt;
  if (!time) throw failure("the answer to HEAD " + asked.url.shown() + " does not tell when it was written");
  return time;
}

bool ObjectPlace::read(const std::string& name, http::Download& download) const {
  if (download.is_part()) {
    const std::lock_guard guard(mutex_);
    if (const auto known = etags_.find(name); known != etags_.end()) download.etag = known->second;
  }
  try {
    if (!ask(request("GET", name), &download)) return false;
  } catch (const Error&) {
    // A file that was replaced is read anew by whoever tries again.
    const std::lock_guard guard(mutex_);
    etags_.erase(name);
    throw;
  }
  const std::lock_guard guard(mutex_);
  if (!download.etag.empty()) etags_[name] = download.etag;
  return true;
}

void ObjectPlace::check_marker() const {
  const auto text = read_file(std::string(kMarker), kLargestMarker);
  if (!text) throw usage_error("there is no " + url(std::string(kMarker)).shown());
  check_marker_text(*text);
}

}  // namespace dsec::registry
