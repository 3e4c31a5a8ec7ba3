#include "registry/web/object_upload.h"

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "registry/directory/file_copy.h"
#include "registry/web/s3_answer.h"

namespace dsec::registry {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
// S3 takes 10,000 parts.
constexpr std::uint64_t kMostParts = 9'000;
// An answer of 200 may still tell that completing failed, for a reason that passes.
constexpr int kMostCompletions = 4;

std::uint64_t part_size(std::uint64_t size, std::uint64_t least) {
  const std::uint64_t needed = (size + kMostParts - 1) / kMostParts;
  return needed <= least ? least : (needed + kMiB - 1) / kMiB * kMiB;
}

// Hashes a part and goes on with the hash of the whole.
Digest hash_part(int fd, std::uint64_t offset, std::uint64_t length, Sha256& whole) {
  std::vector<std::byte> buffer(std::min(length, kMiB));
  Sha256 hash;
  for (std::uint64_t done = 0; done < length;) {
    const std::span<std::byte> piece(buffer.data(), std::min<std::uint64_t>(buffer.size(), length - done));
    read_exactly(fd, offset + done, piece);
    hash.update(piece.data(), piece.size());
    whole.update(piece.data(), piece.size());
    done += piece.size();
  }
  return hash.finish();
}

}  // namespace

Error wrong_content(const Digest& found) {
  return failure("the store's copy is damaged: its bytes have " + found.str())
      .hint("dsec layer verify, then import or pull the layer again");
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

std::string ObjectUpload::send_part(const ObjectContent& content, std::size_t number, std::uint64_t offset,
                                    std::uint64_t length, const Digest& digest,
                                    const std::function<void(std::uint64_t)>& advance) const {
  http::Request request;
  request.method = "PUT";
  request.url = place_.url(name_).with("partNumber", std::to_string(number)).with("uploadId", id_);
  request.headers.emplace_back("x-amz-content-sha256", digest.hex());
  request.body = {{}, content.fd, offset, length, [&](std::uint64_t sent) {
                    if (advance) advance(offset + sent);
                  }};
  const http::Answer answer = place_.send(request, nullptr);
  if (!answer.ok()) throw place_.refusal(request, answer);
  const std::string* etag = answer.header("ETag");
  if (!etag) throw failure("the server takes part " + std::to_string(number) + " and gives it no ETag");
  return *etag;
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
    Sha256 whole;
    std::vector<std::string> parts;
    const std::uint64_t step = part_size(content.size, part_bytes_);
    for (std::uint64_t offset = 0; offset < content.size; offset += step) {
      const std::uint64_t length = std::min(step, content.size - offset);
      const Digest digest = hash_part(content.fd, offset, length, whole);
      parts.push_back(send_part(content, parts.size() + 1, offset, length, digest, advance));
    }
    if (const Digest found = whole.finish(); content.digest && found != *content.digest) throw wrong_content(found);
    if (complete(parts, keep, content.size)) return true;
  } catch (...) {
    abort();
    throw;
  }
  abort();
  return false;
}

}  // namespace dsec::registry
