#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "runners/protocol/wire.h"

namespace dsec::runners {

/// Builds a frame's fields.
class FrameText {
 public:
  FrameText& u16(std::uint16_t value) { return writer_.u16(value), *this; }
  FrameText& u32(std::uint32_t value) { return writer_.u32(value), *this; }
  FrameText& u64(std::uint64_t value) { return writer_.u64(value), *this; }
  FrameText& str(std::string_view value) { return writer_.str(value.data(), value.size()), *this; }
  FrameText& strs(const std::vector<std::string>& values);
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
  wire::Writer<std::string> writer_{text_};
};

struct Frame {
  wire::Type type{};
  std::string text;
  std::vector<UniqueFd> descriptors;

  wire::Reader reader() const { return {text.data(), text.size()}; }
};

/// The keeper ended while it was talked to; what became of its sandbox stands in the sandbox's state file.
class KeeperGone : public Error {
 public:
  KeeperGone();
};

/// A connection to a keeper. One thread may send while another receives.
class Channel {
 public:
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}
  /// Empty when no keeper listens there.
  static std::optional<Channel> connect(const std::filesystem::path& directory);

  void send(wire::Type type, std::string_view text, std::span<const int> descriptors = {}) const;
  /// Empty when `timeout` has passed; throws KeeperGone, and Error when the keeper breaks the protocol.
  std::optional<Frame> receive(std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  /// Nothing more will be sent.
  void hang_up() const noexcept;
  int fd() const noexcept { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::string received_;
  std::size_t used_ = 0;
  std::vector<UniqueFd> descriptors_;
};

/// Sends and waits for the answer; a Failed one is thrown.
Frame request(Channel& channel, wire::Type type, std::string_view text,
              std::optional<std::chrono::milliseconds> timeout = std::nullopt);

/// What a Failed frame says, as "STEP OBJECT: errno text".
Error keeper_error(const Frame& frame);

}  // namespace dsec::runners
