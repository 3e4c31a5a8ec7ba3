#include "layers/archive/tar_header.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace dsec::layers {
namespace {

std::optional<std::int64_t> parse_base256(std::string_view field) {
  const bool negative = static_cast<unsigned char>(field[0]) & 0x40;
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = 0; i < field.size(); ++i) {
    auto byte = static_cast<unsigned char>(field[i]);
    if (i == 0) byte = static_cast<unsigned char>((byte & 0x7f) | (negative ? 0x80 : 0));
    // What is shifted out must be copies of the sign.
    if ((value >> 55) != (negative ? 0x1ffu : 0u)) return std::nullopt;
    value = value << 8 | byte;
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace

std::optional<std::int64_t> parse_tar_number(std::string_view field) {
  if (static_cast<unsigned char>(field[0]) & 0x80) return parse_base256(field);
  const auto is_padding = [](char c) { return c == ' ' || c == '\0'; };
  while (!field.empty() && is_padding(field.front())) field.remove_prefix(1);
  std::int64_t value = 0;  // at most 12 octal digits: no overflow
  while (!field.empty() && field.front() >= '0' && field.front() <= '7') {
    value = value * 8 + (field.front() - '0');
    field.remove_prefix(1);
  }
  if (!field.empty() && !is_padding(field.front())) return std::nullopt;
  return value;
}

bool TarHeader::is_zero() const {
  return std::all_of(block_.begin(), block_.end(), [](char c) { return c == '\0'; });
}

bool TarHeader::checksum_fits() const {
  const auto stored = number(148, 8);
  std::int64_t with_unsigned = 0, with_signed = 0;
  for (std::size_t i = 0; i < block_.size(); ++i) {
    const char c = i >= 148 && i < 156 ? ' ' : block_[i];
    with_unsigned += static_cast<unsigned char>(c);
    with_signed += static_cast<signed char>(c);
  }
  return stored == with_unsigned || stored == with_signed;
}

std::string TarHeader::name() const {
  std::string name = text(0, 100);
  if (!is_ustar()) return name;
  // star keeps two times at the end of the prefix, and says so in the last four bytes.
  const bool star = block_.substr(508, 4) == std::string_view("tar\0", 4);
  const std::string prefix = text(345, star ? 131 : 155);
  return prefix.empty() ? name : prefix + "/" + name;
}

std::string TarHeader::text(std::size_t at, std::size_t size) const {
  const std::string_view field = block_.substr(at, size);
  return std::string(field.substr(0, field.find('\0')));
}

std::optional<std::int64_t> TarHeader::number(std::size_t at, std::size_t size) const {
  return parse_tar_number(block_.substr(at, size));
}

std::optional<std::vector<std::pair<std::uint64_t, std::uint64_t>>> TarHeader::map(std::size_t at,
                                                                                   std::size_t count) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs;
  for (std::size_t i = 0; i < count; ++i, at += 24) {
    if (block_[at] == '\0' && block_[at + 12] == '\0') break;
    const auto offset = number(at, 12), size = number(at + 12, 12);
    if (!offset || !size || *offset < 0 || *size < 0) return std::nullopt;
    pairs.emplace_back(*offset, *size);
  }
  return pairs;
}

std::optional<std::uint64_t> parse_decimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<std::vector<std::pair<std::string_view, std::string_view>>> parse_pax_records(std::string_view bytes) {
  std::vector<std::pair<std::string_view, std::string_view>> records;
  while (!bytes.empty()) {
    const std::size_t blank = bytes.find(' ');
    if (blank == std::string_view::npos) return std::nullopt;
    const auto length = parse_decimal(bytes.substr(0, blank));
    if (!length || *length > bytes.size() || *length < blank + 3 || bytes[*length - 1] != '\n') return std::nullopt;
    const std::string_view record = bytes.substr(blank + 1, *length - blank - 2);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    records.emplace_back(record.substr(0, equals), record.substr(equals + 1));
    bytes.remove_prefix(*length);
  }
  return records;
}

std::optional<Timestamp> parse_pax_time(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const std::string_view whole = text.substr(0, text.find('.'));
  const auto seconds = parse_decimal(whole);
  if (!seconds || *seconds > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  std::uint32_t nanoseconds = 0;
  if (whole.size() < text.size()) {
    std::string digits(text.substr(whole.size() + 1, 9));
    digits.resize(9, '0');
    if (text.find_first_not_of("0123456789", whole.size() + 1) != std::string_view::npos) return std::nullopt;
    nanoseconds = static_cast<std::uint32_t>(*parse_decimal(digits));
  }
  Timestamp time{static_cast<std::int64_t>(*seconds), nanoseconds};
  if (!negative) return time;
  // -1.25 is 0.75 after -2.
  time.seconds = -time.seconds - (nanoseconds ? 1 : 0);
  time.nanoseconds = nanoseconds ? 1'000'000'000 - nanoseconds : 0;
  return time;
}

}  // namespace dsec::layers
