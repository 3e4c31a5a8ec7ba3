#include "registry/web/object_upload.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "core/base/digest_of_part.h"
#include "core/base/error.h"
#include "registry/directory/file_copy.h"
#include "registry/web/s3_answer.h"

namespace dsec::registry {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
// S3 takes 10,000 parts.
constexpr std::uint64_t kMostParts = 9'000;
// One connection seldom gets all that a server would take.
constexpr std::size_t kSenders = 4;
// An answer of 200 may still tell that completing failed, for a reason that passes.
constexpr int kMostCompletions = 4;

std::uint64_t part_size(std::uint64_t size, std::uint64_t least) {
  const std::uint64_t needed = (size + kMostParts - 1) / kMostParts;
  return needed <= least ? least : (needed + kMiB - 1) / kMiB * kMiB;
}

Digest hash_part(int fd, std::uint64_t offset, std::uint64_t length) {
  std::vector<std::byte> buffer(std::min(length, kMiB));
  Sha256 hash;
  for (std::uint64_t done = 0; done < length;) {
    const std::span<std::byte> piece(buffer.data(), std::min<std::uint64_t>(buffer.size(), length - done));
    read_exactly(fd, offset + done, piece);
    hash.update(piece.data(), piece.size());
    done += piece.size();
  }
  return hash.finish();
}

/// Adds up what parts that are sent at once tell of themselves.
class Tally {
 public:
  Tally(std::size_t parts, const std::function<void(std::uint64_t)>& advance) : sent_(parts), advance_(advance) {}
  void set(std::size_t part, std::uint64_t sent) {
    const std::lock_guard guard(mutex_);
    total_ += sent - sent_[part];
    sent_[part] = sent;
    if (advance_) advance_(total_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::uint64_t> sent_;
  std::uint64_t total_ = 0;
  const std::function<void(std::uint64_t)>& advance_;
};

}  // namespace

Error wrong_content(const ObjectContent& content, const Digest& found) {
  return content.damaged ? content.damaged(found) : failure("the file that was to be sent has " + found.str());
}

ObjectUpload::ObjectUpload(const S3Place& place, const std::string& name, std::uint64_t part_bytes)
    : place_(place), name_(name), part_bytes_(part_bytes) {}

void ObjectUpload::begin() {
  http::Request request;
  request.method = "POST";
  request.url = place_.url(name_).with("uploads", "");
  const http::Answer answer = place_.send(request, nullptr);
  if (!answer.ok()) throw place_.refusal(request, answer);
  id_ = first_xml_text(answer.body, "UploadId");
  if (id_.empty()) throw failure("the server begins an upload and gives it no id");
}

std::string ObjectUpload::send_part(const ObjectContent& content, const Part& part,
                                    const std::function<void(std::uint64_t)>& advance) const {
  http::Request request;
  request.method = "PUT";
  request.url = place_.url(name_).with("partNumber", std::to_string(part.number)).with("uploadId", id_);
  request.headers.emplace_back("x-amz-content-sha256", hash_part(content.fd, part.offset, part.length).hex());
  request.body = {{}, content.fd, part.offset, part.length, advance};
  const http::Answer answer = place_.send(request, nullptr);
  if (!answer.ok()) throw place_.refusal(request, answer);
  const std::string* etag = answer.header("ETag");
  if (!etag) throw failure("the server takes part " + std::to_string(part.number) + " and gives it no ETag");
  return *etag;
}

std::vector<std::string> ObjectUpload::send_parts(const ObjectContent& content,
                                                  const std::function<void(std::uint64_t)>& advance) const {
  const std::uint64_t step = part_size(content.size, part_bytes_);
  const auto count = static_cast<std::size_t>((content.size + step - 1) / step);
  std::vector<std::string> etags(count);
  Tally tally(count, advance);
  std::mutex mutex;
  std::exception_ptr failed;
  std::atomic<std::size_t> next = 0;
  const auto fail = [&] {
    next = count;
    const std::lock_guard guard(mutex);
    if (!failed) failed = std::current_exception();
  };
  const auto send = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        const std::uint64_t offset = i * step;
        etags[i] = send_part(content, {i + 1, offset, std::min(step, content.size - offset)},
                             [&](std::uint64_t sent) { tally.set(i, sent); });
      } catch (...) {
        fail();
      }
    }
  };
  {
    std::vector<std::jthread> senders;
    for (std::size_t i = 0; i < std::min(count, kSenders); ++i) senders.emplace_back(send);
    try {
      if (const Digest found = digest_of_part(content.fd, content.size); content.digest && found != *content.digest)
        throw wrong_content(content, found);
    } catch (...) {
      fail();
    }
  }
  if (failed) std::rethrow_exception(failed);
  return etags;
}

bool ObjectUpload::complete(const std::vector<std::string>& parts, bool keep, std::uint64_t size) const {
  http::Request request;
  request.method = "POST";
  request.url = place_.url(name_).with("uploadId", id_);
  request.body.text = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < parts.size(); ++i)
    request.body.text +=
        "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" + escaped_xml(parts[i]) + "</ETag></Part>";
  request.body.text += "</CompleteMultipartUpload>";
  for (int tries = 1;; ++tries) {
    const http::Answer answer = keep ? place_.send_once(request) : place_.send(request, nullptr);
    if (answer.status == 412 && keep) return false;
    const bool told = answer.ok() && answer.body.find("<Error>") == std::string::npos;
    if (told) return true;
    // A completion whose answer was lost is not there any more when it is repeated.
    if (answer.status == 404 && place_.size(name_) == size) return true;
    if (!answer.ok() || tries == kMostCompletions) throw place_.refusal(request, answer);
  }
}

void ObjectUpload::abort() const noexcept {
  try {
    http::Request request;
    request.method = "DELETE";
    request.url = place_.url(name_).with("uploadId", id_);
    place_.send(request, nullptr);
  } catch (const Error&) {
    // The bucket's life-cycle rule takes what is left.
  }
}

bool ObjectUpload::run(const ObjectContent& content, bool keep, const std::function<void(std::uint64_t)>& advance) {
  begin();
  try {
    if (complete(send_parts(content, advance), keep, content.size)) return true;
  } catch (...) {
    abort();
    throw;
  }
  abort();
  return false;
}

}  // namespace dsec::registry
