#include "layers/disk/nbd_connection.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "layers/disk/nbd_protocol.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kRequestSize = 28, kOptionSize = 16;
constexpr std::uint16_t kExportFlags =
    nbd::kHasFlags | nbd::kSendFlush | nbd::kSendFua | nbd::kSendTrim | nbd::kSendWriteZeroes | nbd::kCanMultiConn;
constexpr std::size_t kZeroesAfterExport = 124;

template <typename Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i)
    number = static_cast<Number>(number << 8 | static_cast<unsigned char>(bytes[at + i]));
  return number;
}

template <typename Number>
void put(std::string& bytes, Number number) {
  for (std::size_t i = sizeof number; i-- > 0;) bytes += static_cast<char>(number >> (8 * i) & 0xff);
}

}  // namespace

NbdConnection::NbdConnection(BlockTarget& target, Log log) : target_(target), log_(std::move(log)) {
  put(output_, nbd::kGreeting);
  put(output_, nbd::kOptionMagic);
  put(output_, static_cast<std::uint16_t>(nbd::kFixedNewstyle | nbd::kNoZeroes));
}

void NbdConnection::sent(std::size_t bytes) {
  sent_ += bytes;
  if (sent_ < output_.size()) return;
  output_.clear();
  sent_ = 0;
}

void NbdConnection::receive(std::string_view bytes) {
  if (passing_over_ > 0 && input().empty()) {
    const std::size_t over = static_cast<std::size_t>(std::min<std::uint64_t>(passing_over_, bytes.size()));
    bytes.remove_prefix(over);
    passing_over_ -= over;
  }
  input_ += bytes;
  work_ = 0;
  more_ = true;
  while (more_ && !ended_ && has_room() && work_ < kMostWork) more_ = step();
  if (ended_) {
    more_ = false;
    input_.clear();
    taken_ = 0;
  }
  input_.erase(0, taken_);
  taken_ = 0;
}

bool NbdConnection::step() {
  if (passing_over_ > 0) {
    const std::size_t over = static_cast<std::size_t>(std::min<std::uint64_t>(passing_over_, input().size()));
    take(over);
    passing_over_ -= over;
    if (passing_over_ > 0) return false;
  }
  switch (state_) {
    case State::ClientFlags:
      return client_flags();
    case State::Option:
      return option();
    case State::Request:
      return request();
  }
  return false;
}

bool NbdConnection::client_flags() {
  if (input().size() < 4) return false;
  const auto flags = number_at<std::uint32_t>(input(), 0);
  take(4);
  if (flags & ~std::uint32_t{nbd::kFixedNewstyle | nbd::kNoZeroes}) ended_ = true;
  no_zeroes_ = (flags & nbd::kNoZeroes) != 0;
  state_ = State::Option;
  return true;
}

bool NbdConnection::option() {
  if (input().size() < kOptionSize) return false;
  if (number_at<std::uint64_t>(input(), 0) != nbd::kOptionMagic) {
    ended_ = true;
    return true;
  }
  const auto option = number_at<std::uint32_t>(input(), 8), length = number_at<std::uint32_t>(input(), 12);
  if (length > nbd::kMostOptionData) {
    take(kOptionSize);
    passing_over_ = length;
    reply_to_option(option, nbd::reply::kTooBig);
    return true;
  }
  if (input().size() < kOptionSize + length) return false;
  const std::string_view data = input().substr(kOptionSize, length);
  switch (option) {
    case nbd::option::kExportName:
      // Nothing can be answered to it but the export.
      if (data.empty())
        export_name();
      else
        ended_ = true;
      break;
    case nbd::option::kAbort:
      reply_to_option(option, nbd::reply::kAck);
      ended_ = true;
      break;
    case nbd::option::kList:
      list(data);
      break;
    case nbd::option::kInfo:
    case nbd::option::kGo:
      info_or_go(option, data);
      break;
    default:
      reply_to_option(option, nbd::reply::kUnsupported);
  }
  take(kOptionSize + length);
  return true;
}

void NbdConnection::reply_to_option(std::uint32_t option, std::uint32_t type, std::string_view data) {
  put(output_, nbd::kOptionReplyMagic);
  put(output_, option);
  put(output_, type);
  put(output_, static_cast<std::uint32_t>(data.size()));
  output_ += data;
}

void NbdConnection::export_name() {
  put(output_, target_.size());
  put(output_, kExportFlags);
  if (!no_zeroes_) output_.append(kZeroesAfterExport, '\0');
  state_ = State::Request;
}

void NbdConnection::list(std::string_view data) {
  if (!data.empty()) return reply_to_option(nbd::option::kList, nbd::reply::kInvalid);
  reply_to_option(nbd::option::kList, nbd::reply::kServer, std::string_view("\0\0\0\0", 4));
  reply_to_option(nbd::option::kList, nbd::reply::kAck);
}

// Data: length of the name, the name, how many kinds of information are asked for, their numbers. All that there is is
// told, whatever is asked for.
void NbdConnection::info_or_go(std::uint32_t option, std::string_view data) {
  if (data.size() < 6) return reply_to_option(option, nbd::reply::kInvalid);
  const auto name = number_at<std::uint32_t>(data, 0);
  if (name > data.size() - 6) return reply_to_option(option, nbd::reply::kInvalid);
  const auto asked = number_at<std::uint16_t>(data, 4 + name);
  if (data.size() != 6 + std::size_t{name} + 2 * std::size_t{asked})
    return reply_to_option(option, nbd::reply::kInvalid);
  if (name > 0) return reply_to_option(option, nbd::reply::kUnknown);
  std::string told;
  put(told, nbd::info::kExport);
  put(told, target_.size());
  put(told, kExportFlags);
  reply_to_option(option, nbd::reply::kInfo, told);
  told.clear();
  put(told, nbd::info::kBlockSize);
  put(told, nbd::kLeastBlock);
  put(told, nbd::kPreferredBlock);
  put(told, nbd::kMostPayload);
  reply_to_option(option, nbd::reply::kInfo, told);
  reply_to_option(option, nbd::reply::kAck);
  if (option == nbd::option::kGo) state_ = State::Request;
}

bool NbdConnection::request() {
  if (input().size() < kRequestSize) return false;
  const std::string_view bytes = input();
  const auto flags = number_at<std::uint16_t>(bytes, 4), command = number_at<std::uint16_t>(bytes, 6);
  const auto offset = number_at<std::uint64_t>(bytes, 16);
  const auto length = number_at<std::uint32_t>(bytes, 24);
  // Of what comes after another beginning nothing is known.
  if (number_at<std::uint32_t>(bytes, 0) != nbd::kRequestMagic || command == nbd::command::kDisconnect) {
    ended_ = true;
    return true;
  }
  const std::string cookie(bytes.substr(8, 8));
  std::uint32_t error = 0;
  std::string_view payload;
  std::size_t whole = kRequestSize;
  if (command == nbd::command::kWrite && length > nbd::kMostPayload) {
    passing_over_ = length;
    error = nbd::error::kInvalid;
  } else if (command == nbd::command::kWrite) {
    whole += length;
    if (bytes.size() < whole) {
      // Else it would grow, and be copied, again and again.
      input_.reserve(taken_ + whole);
      return false;
    }
    payload = bytes.substr(kRequestSize, length);
  }
  const std::size_t begin = output_.size();
  put(output_, nbd::kReplyMagic);
  put(output_, error);
  output_ += cookie;
  const std::size_t behind = output_.size();
  // A flush takes its time, too.
  work_ += command == nbd::command::kFlush ? kMostWork / 16 : length;
  if (error == 0) error = perform(command, flags, offset, length, payload);
  if (error != 0) {
    output_.resize(behind);
    for (std::size_t i = 0; i < 4; ++i) output_[begin + 4 + i] = static_cast<char>(error >> (24 - 8 * i) & 0xff);
  }
  take(whole);
  return true;
}

std::uint32_t NbdConnection::perform(std::uint16_t command, std::uint16_t flags, std::uint64_t offset,
                                     std::uint32_t length, std::string_view payload) {
  const bool changes =
      command == nbd::command::kWrite || command == nbd::command::kTrim || command == nbd::command::kWriteZeroes;
  // FUA may come with what changes nothing, too.
  const bool zeroes = command == nbd::command::kWriteZeroes;
  if (flags & ~(nbd::command::kFua | (zeroes ? nbd::command::kNoHole : 0))) return nbd::error::kInvalid;
  if (command != nbd::command::kFlush && (offset > target_.size() || length > target_.size() - offset))
    return changes ? nbd::error::kNoSpace : nbd::error::kInvalid;
  if (changes && (offset % nbd::kLeastBlock != 0 || length % nbd::kLeastBlock != 0)) return nbd::error::kInvalid;
  try {
    switch (command) {
      case nbd::command::kRead: {
        if (length > nbd::kMostPayload) return nbd::error::kInvalid;
        const std::size_t at = output_.size();
        output_.resize(at + length);
        target_.read(offset, output_.data() + at, length);
        break;
      }
      case nbd::command::kWrite:
        target_.write(offset, payload);
        break;
      case nbd::command::kTrim:
        target_.clear(offset, length);
        break;
      case nbd::command::kWriteZeroes:
        if (flags & nbd::command::kNoHole) {
          const std::string zeros(std::min<std::uint32_t>(length, 1u << 20), '\0');
          for (std::uint64_t done = 0; done < length; done += zeros.size())
            target_.write(offset + done, std::string_view(zeros).substr(0, length - done));
        } else {
          target_.clear(offset, length);
        }
        break;
      case nbd::command::kFlush:
        target_.flush();
        break;
      default:
        return nbd::error::kInvalid;
    }
    if (changes && (flags & nbd::command::kFua)) target_.flush();
    return 0;
  } catch (const Error& error) {
    log_(error.message());
  } catch (const std::exception& error) {
    log_(error.what());
  }
  // Also when the host's disk is full: QEMU would stop a machine that it is told of that, and nobody would know.
  return nbd::error::kIo;
}

}  // namespace dsec::layers
