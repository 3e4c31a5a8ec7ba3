#include "layers/erofs/tar_writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

namespace dsec::layers {
namespace {

constexpr std::size_t kBlock = 512;

/// "LENGTH KEY=VALUE\n", in which LENGTH counts itself.
std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t body = key.size() + value.size() + 3;
  std::size_t length = body + 1;
  while (std::to_string(length).size() + body != length) length = body + std::to_string(length).size();
  std::string record = std::to_string(length) + " ";
  return record.append(key).append("=").append(value).append("\n");
}

std::string pax_time(const Timestamp& time) {
  std::string out;
  std::int64_t seconds = time.seconds;
  std::uint32_t nanoseconds = time.nanoseconds;
  // The decimal form counts the fraction away from zero: 0.75 after -2 is -1.25.
  if (seconds < 0 && nanoseconds > 0) {
    ++seconds;
    nanoseconds = 1'000'000'000 - nanoseconds;
    if (seconds == 0) out = "-";
  }
  out += std::to_string(seconds);
  if (nanoseconds > 0) {
    std::array<char, 16> digits{};
    std::snprintf(digits.data(), digits.size(), ".%09u", nanoseconds);
    out += digits.data();
  }
  return out;
}

char type_flag(EntryType type) {
  switch (type) {
    case EntryType::File:
      return '0';
    case EntryType::HardLink:
      return '1';
    case EntryType::Symlink:
      return '2';
    case EntryType::CharDevice:
      return '3';
    case EntryType::BlockDevice:
      return '4';
    case EntryType::Directory:
      return '5';
    case EntryType::Fifo:
      return '6';
  }
  return '0';
}

std::string percent_encode(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '=' || c == '%') {
      static constexpr char kHex[] = "0123456789ABCDEF";
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out;
}

std::string base64(std::string_view bytes) {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j) out += i + j <= bytes.size() ? kAlphabet[bits >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

class Header {
 public:
  Header() { block_.fill('\0'); }
  void text(std::size_t at, std::size_t size, std::string_view value) {
    std::copy_n(value.begin(), std::min(size, value.size()), block_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  /// False when the number has more digits than the field.
  bool number(std::size_t at, std::size_t size, std::uint64_t value) {
    std::array<char, 32> digits{};
    const int length = std::snprintf(digits.data(), digits.size(), "%0*lo", static_cast<int>(size - 1), value);
    if (static_cast<std::size_t>(length) > size - 1) {
      number(at, size, 0);
      return false;
    }
    text(at, size - 1, digits.data());
    return true;
  }
  std::string finish() {
    text(257, 8, std::string_view("ustar\00000", 8));
    text(148, 8, "        ");
    unsigned sum = 0;
    for (const char c : block_) sum += static_cast<unsigned char>(c);
    std::array<char, 16> digits{};
    std::snprintf(digits.data(), digits.size(), "%06o", sum);
    text(148, 6, digits.data());
    block_[154] = '\0';
    block_[155] = ' ';
    return {block_.begin(), block_.end()};
  }

 private:
  std::array<char, kBlock> block_;
};

void pad(std::string& bytes) { bytes.resize((bytes.size() + kBlock - 1) / kBlock * kBlock, '\0'); }

}  // namespace

std::string tar_header_blocks(const Entry& entry) {
  Header header;
  std::string pax;
  const std::string path = entry.path.empty() ? "." : entry.path;
  if (path.size() < 100)
    header.text(0, 100, path);
  else
    pax += pax_record("path", path);
  if (entry.type == EntryType::Symlink || entry.type == EntryType::HardLink) {
    if (entry.target.size() < 100)
      header.text(157, 100, entry.target);
    else
      pax += pax_record("linkpath", entry.target);
  }
  header.number(100, 8, entry.mode);
  if (!header.number(108, 8, entry.uid)) pax += pax_record("uid", std::to_string(entry.uid));
  if (!header.number(116, 8, entry.gid)) pax += pax_record("gid", std::to_string(entry.gid));
  const std::uint64_t size = entry.type == EntryType::File ? entry.size : 0;
  if (!header.number(124, 12, size)) pax += pax_record("size", std::to_string(size));
  const bool plain_time = entry.mtime.seconds >= 0 && entry.mtime.nanoseconds == 0;
  if (!header.number(136, 12, plain_time ? static_cast<std::uint64_t>(entry.mtime.seconds) : 0) || !plain_time)
    pax += pax_record("mtime", pax_time(entry.mtime));
  header.number(329, 8, entry.major);
  header.number(337, 8, entry.minor);
  if (entry.type != EntryType::HardLink)
    for (const auto& [name, value] : entry.xattrs) {
      // A name with '=' has only one form that readers understand.
      if (name.find('=') == std::string::npos)
        pax += pax_record("SCHILY.xattr." + name, value);
      else
        pax += pax_record("LIBARCHIVE.xattr." + percent_encode(name), base64(value));
    }
  header.text(156, 1, std::string(1, type_flag(entry.type)));

  std::string blocks;
  if (!pax.empty()) {
    Header extended;
    extended.text(0, 100, "PaxHeaders/x");
    extended.number(100, 8, 0644);
    for (const std::size_t field : {108u, 116u}) extended.number(field, 8, 0);
    extended.number(124, 12, pax.size());
    extended.number(136, 12, 0);
    extended.text(156, 1, "x");
    pad(pax);
    blocks = extended.finish() + pax;
  }
  return blocks + header.finish();
}

std::string tar_end() { return std::string(2 * kBlock, '\0'); }

}  // namespace dsec::layers
