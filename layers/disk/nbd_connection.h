#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "layers/disk/block_target.h"

namespace dsec::layers {

/// The server's side of one NBD connection, as bytes that come and bytes that go: fixed newstyle handshake, simple
/// replies, one export whose name is empty (man dsec-disk). The client may be anybody: nothing that it sends makes this
/// take more memory than two payloads, touch the target out of its bounds, or throw.
class NbdConnection {
 public:
  /// Is told why something failed of which the client learns no more than that it did.
  using Log = std::function<void(const std::string&)>;
  NbdConnection(BlockTarget& target, Log log);

  /// What came next, of any length. Does what is complete, and no more once more than kFullOutput waits to go, or as
  /// much was done as others may wait for: then there is more(), which resume() does.
  void receive(std::string_view bytes);
  bool more() const noexcept { return more_; }
  void resume() { receive({}); }
  /// What is to be sent, in order; sent() takes it off.
  std::string_view output() const { return std::string_view(output_).substr(sent_); }
  void sent(std::size_t bytes);
  /// Whether anything more that comes would be used now.
  bool wants_input() const { return !ended_ && !more_ && has_room(); }
  /// Nothing comes any more: the connection is to be closed when output() is sent.
  bool ended() const noexcept { return ended_; }

  static constexpr std::size_t kFullOutput = 4 << 20;
  /// Bytes of the disk that are read or changed in one turn, and the request that goes beyond.
  static constexpr std::uint64_t kMostWork = 64 << 20;

 private:
  enum class State { ClientFlags, Option, Request };

  /// Each does one message at the front of input(), and tells whether there was a whole one.
  bool step();
  bool client_flags();
  bool option();
  bool request();

  void export_name();
  void info_or_go(std::uint32_t option, std::string_view data);
  void list(std::string_view data);
  void reply_to_option(std::uint32_t option, std::uint32_t type, std::string_view data = {});
  std::uint32_t perform(std::uint16_t command, std::uint16_t flags, std::uint64_t offset, std::uint32_t length,
                        std::string_view payload);

  bool has_room() const { return output().size() < kFullOutput; }
  std::string_view input() const { return std::string_view(input_).substr(taken_); }
  void take(std::size_t bytes) { taken_ += bytes; }

  BlockTarget& target_;
  const Log log_;
  State state_ = State::ClientFlags;
  bool no_zeroes_ = false, ended_ = false, more_ = false;
  std::uint64_t work_ = 0;
  std::uint64_t passing_over_ = 0;  ///< bytes that come next and mean nothing
  std::string input_, output_;
  std::size_t taken_ = 0, sent_ = 0;
};

}  // namespace dsec::layers
