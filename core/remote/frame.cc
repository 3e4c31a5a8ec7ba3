#include "core/remote/frame.h"

#include <nlohmann/json.hpp>

#include "core/engine/recording.h"
#include "core/model/operation.h"

namespace dsec::remote {

void append_frame(std::string& to, FrameKind kind, std::string_view payload) {
  const auto size = static_cast<std::uint32_t>(payload.size());
  to += static_cast<char>(kind);
  for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>((size >> shift) & 0xff);
  to += payload;
}

std::string frame(FrameKind kind, std::string_view payload) {
  std::string text;
  append_frame(text, kind, payload);
  return text;
}

std::string frame(FrameKind kind, const Json& value) { return frame(kind, std::string_view(canonical_json(value))); }

Json Frame::json() const { return parse_json(payload, "a frame of the stream"); }

std::optional<Frame> FrameReader::next() {
  if (bytes_.size() - used_ < kFrameHead) return std::nullopt;
  std::uint32_t size = 0;
  for (std::size_t i = 1; i < kFrameHead; ++i) size = size << 8 | static_cast<unsigned char>(bytes_[used_ + i]);
  if (size > longest_) throw failure("a frame of " + std::to_string(size) + " bytes is too long");
  if (bytes_.size() - used_ - kFrameHead < size) {
    bytes_.erase(0, used_);
    used_ = 0;
    return std::nullopt;
  }
  Frame found{static_cast<FrameKind>(bytes_[used_]), bytes_.substr(used_ + kFrameHead, size)};
  used_ += kFrameHead + size;
  if (used_ == bytes_.size()) bytes_.clear(), used_ = 0;
  return found;
}

Json to_wire(const ExecResult& result) {
  Json json = exec_result_json(result);
  if (!result.detail.empty()) json["detail"] = result.detail;
  return json;
}

ExecResult exec_result_from_wire(const Json& json) {
  ExecResult result = exec_result_from(json);
  result.detail = json_string_or(json, "detail", "");
  return result;
}

Json error_document(const Error& error) {
  Json document = {{"error", engine::error_json(error)}};
  document["error"]["exit_code"] = error.kind() == ErrorKind::Usage ? 2 : 1;
  return document;
}

Error error_from_document(std::string_view body, const std::string& otherwise) {
  try {
    const Json json = parse_json(body, "the answer");
    if (json.is_object() && json.contains("error") && json["error"].is_object())
      return engine::error_from(json["error"]);
  } catch (const Error&) {
    // It speaks of something else: what came says more than what it is not.
  }
  return failure(otherwise);
}

}  // namespace dsec::remote
