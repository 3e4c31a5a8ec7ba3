#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/model/sandbox_spec.h"

namespace dsec::remote {

/// The media type and the protocol of streams; man/dsec-wire.7.md is the reference.
inline constexpr char kFramesType[] = "application/vnd.dsec.frames";
inline constexpr char kFramesProtocol[] = "dsec-frames";
inline constexpr char kBytesProtocol[] = "dsec-bytes";  ///< what a port of a sandbox says, without frames

/// Headers of a call.
inline constexpr char kOpIdHeader[] = "Dsec-Op-Id";
inline constexpr char kOriginHeader[] = "Dsec-Origin";
inline constexpr char kRecordedHeader[] = "Dsec-Recorded";  ///< "false": OperationContext::recorded
inline constexpr char kRequestIdHeader[] = "Dsec-Request-Id";

enum class FrameKind : std::uint8_t {
  Stdout = 1,
  Stderr = 2,
  Exited = 3,     ///< how a command ended; the last
  KeepAlive = 4,  ///< nothing has happened, and the edge is there
  Failed = 5,     ///< an error; the last
  Record = 6,     ///< one JSON value of a stream of such
  Data = 7,       ///< bytes of a stream of such
  End = 8,        ///< of a stream that has no other end; the last
  Stdin = 16,
  StdinEnd = 17,
  Resize = 18,  ///< {"rows", "columns"}
};

/// A kind of one byte, a length of four in network order, and as many bytes.
inline constexpr std::size_t kFrameHead = 5;
inline constexpr std::uint32_t kLongestFrame = 8u << 20;

void append_frame(std::string& to, FrameKind kind, std::string_view payload);
std::string frame(FrameKind kind, std::string_view payload = {});
std::string frame(FrameKind kind, const Json& value);

struct Frame {
  FrameKind kind{};
  std::string payload;
  /// The payload as JSON; throws Error.
  Json json() const;
};

/// Takes bytes as they come and gives frames.
class FrameReader {
 public:
  explicit FrameReader(std::uint32_t longest = kLongestFrame) : longest_(longest) {}
  void add(std::string_view bytes) { bytes_.append(bytes); }
  /// Empty when the next one is not whole yet. Throws Error for one that is too long.
  std::optional<Frame> next();
  bool empty() const noexcept { return used_ == bytes_.size(); }

 private:
  const std::uint32_t longest_;
  std::string bytes_;
  std::size_t used_ = 0;
};

/// A result with `detail`, which records have in another form.
Json to_wire(const ExecResult& result);
ExecResult exec_result_from_wire(const Json& json);

/// {"error": {"kind", "chain", "try", "exit_code"}}: what `dsec` prints and ends with.
Json error_document(const Error& error);
/// The error of such a document; of anything else one that says so.
Error error_from_document(std::string_view body, const std::string& otherwise);

}  // namespace dsec::remote
