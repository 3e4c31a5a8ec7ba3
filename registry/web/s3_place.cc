#include "registry/web/s3_place.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/digest_of_part.h"
#include "core/base/error.h"
#include "registry/layout/layout.h"
#include "registry/list_budget.h"
#include "registry/web/object_upload.h"
#include "registry/web/s3_answer.h"

namespace dsec::registry {
namespace {

constexpr int kMostPages = 100'000;
// Of two that write one object at once the server turns one away for the moment.
constexpr int kMostConflicts = 5;
constexpr std::chrono::milliseconds kConflict{200};

}  // namespace

S3Place::S3Place(const Config& config, http::ClientOptions options, const RegistryAddress& address,
                 std::uint64_t part_bytes)
    : address_(address),
      part_bytes_(part_bytes),
      environment_(S3Environment::of_this_process()),
      target_(S3Target::of(address, environment_)),
      access_(config, std::move(options), {target_.root.authority(), target_.authority}) {}

S3Environment S3Place::environment() const {
  const std::lock_guard guard(mutex_);
  return environment_;
}

std::string S3Place::key(const std::string& name) const {
  return address_.prefix.empty() ? name : address_.prefix + "/" + name;
}

http::Url S3Place::url(const std::string& name) const {
  http::Url url = target_.root;
  url.target += escaped_name(key(name));
  return url;
}

http::Answer S3Place::send(http::Request request, http::Download* download) const {
  const auto sign = [&](const S3Environment& with) {
    if (with.key_id.empty()) return;
    request.signature = std::make_shared<const http::AwsSignature>(
        http::AwsSignature{target_.region, "s3", with.key_id, with.secret, with.session_token});
  };
  if (!http::find_header(request.headers, "x-amz-content-sha256"))
    request.headers.emplace_back("x-amz-content-sha256", Digest::of(request.body.text).hex());
  const S3Environment used = environment();
  sign(used);
  http::Answer answer = access_.client.send(request, download);
  if (answer.status != 400 && answer.status != 403) return answer;
  // Keys of a session end, and who made them may have written new ones. HEAD is not told why it was refused.
  const S3Environment now = S3Environment::of_this_process();
  if (now.key_id == used.key_id && now.secret == used.secret && now.session_token == used.session_token) return answer;
  {
    const std::lock_guard guard(mutex_);
    environment_ = now;
  }
  sign(now);
  return access_.client.send(request, download);
}

Error S3Place::refusal(const http::Request& request, const http::Answer& answer) const {
  return s3_error(request, answer, address_.bucket, target_, environment());
}

void S3Place::check_registry() const {
  try {
    check_marker();
  } catch (Error& error) {
    if (error.kind() == ErrorKind::Usage && error.hints().empty())
      error.hint("dsec publish REF --to " + address_.url() + " makes a registry of a prefix with nothing below it");
    throw;
  }
}

void S3Place::make_registry() const {
  if (read_file(std::string(kMarker), kLargestMarker)) return check_registry();
  // Whoever makes it at this moment puts the marker first.
  if (!list(key(""), 1).empty() && !read_file(std::string(kMarker), kLargestMarker))
    throw usage_error("there are objects below " + address_.url() + " and no registry")
        .hint("name a prefix with nothing below it");
  put(std::string(kMarker), {marker_text(), -1, marker_text().size(), {}}, Existing::Keep, {});
  check_registry();
}

std::vector<std::string> S3Place::list(const std::string& key_prefix, std::size_t limit) const {
  std::vector<std::string> keys;
  ListBudget budget(address_.url());
  std::string from;
  for (int pages = 0; pages < kMostPages; ++pages) {
    http::Request request;
    request.url = target_.root;
    // In this order, as signing wants it.
    if (!from.empty()) request.url = request.url.with("continuation-token", from);
    request.url = request.url.with("list-type", "2");
    if (limit) request.url = request.url.with("max-keys", std::to_string(limit));
    request.url = request.url.with("prefix", key_prefix);
    const http::Answer answer = send(request, nullptr);
    if (!answer.ok()) throw refusal(request, answer);
    S3Page page = attempt("cannot list " + address_.url(), [&] { return S3Page::parse(answer.body); });
    for (std::string& key : page.keys) budget.take(keys.emplace_back(std::move(key)));
    if (page.next.empty() || (limit && keys.size() >= limit)) return keys;
    if (page.next == from) break;
    from = std::move(page.next);
  }
  throw failure("listing " + address_.url() + " does not come to an end");
}

std::vector<std::string> S3Place::names(const std::string& prefix) const {
  std::vector<std::string> names;
  const std::string above = key("");
  for (const std::string& found : list(key(prefix), 0))
    if (found.starts_with(above)) names.push_back(found.substr(above.size()));
  std::sort(names.begin(), names.end());
  return names;
}

bool S3Place::put(const std::string& name, const ObjectContent& content, Existing existing,
                  const std::function<void(std::uint64_t)>& advance) const {
  if (content.fd >= 0 && content.size > part_bytes_)
    return ObjectUpload(*this, name, part_bytes_).run(content, existing == Existing::Keep, advance);
  return put_whole(name, content, existing, advance);
}

http::Answer S3Place::send_once(http::Request request) const {
  for (int tries = 1;; ++tries) {
    http::Request asked = request;
    if (conditional_) asked.headers.emplace_back("If-None-Match", "*");
    http::Answer answer = send(asked, nullptr);
    if (answer.status == 409 && tries < kMostConflicts) {
      std::this_thread::sleep_for(kConflict * tries);
      continue;
    }
    if (!conditional_ || (answer.status != 501 && s3_code(answer) != "NotImplemented")) return answer;
    conditional_ = false;
  }
}

void S3Place::remove(const std::string& name) const {
  http::Request request;
  request.method = "DELETE";
  request.url = url(name);
  const http::Answer answer = send(request, nullptr);
  if (!answer.ok() && s3_code(answer) != "NoSuchKey") throw refusal(request, answer);
}

bool S3Place::put_whole(const std::string& name, const ObjectContent& content, Existing existing,
                        const std::function<void(std::uint64_t)>& advance) const {
  http::Request request;
  request.method = "PUT";
  request.url = url(name);
  request.body = {content.text, content.fd, 0, content.fd >= 0 ? content.size : 0, advance};
  if (content.fd >= 0) {
    const Digest found = digest_of_part(content.fd, content.size);
    if (content.digest && found != *content.digest) throw wrong_content(content, found);
    request.headers.emplace_back("x-amz-content-sha256", found.hex());
  }
  const http::Answer answer = existing == Existing::Keep ? send_once(request) : send(request, nullptr);
  if (answer.status == 412 && existing == Existing::Keep) return false;
  if (!answer.ok()) throw refusal(request, answer);
  return true;
}

}  // namespace dsec::registry
