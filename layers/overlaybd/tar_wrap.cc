#include "layers/overlaybd/tar_wrap.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>

#include "layers/overlaybd/write_at.h"

namespace dsec::layers::overlaybd {
namespace {

using namespace std::string_view_literals;

constexpr std::uint64_t kBlock = 512;
constexpr std::string_view kMagic = "ustar"sv;
// Offsets of a header's fields, and their sizes.
constexpr std::size_t kModeAt = 100, kUidAt = 108, kGidAt = 116, kSizeAt = 124, kSizeSize = 12, kTimeAt = 136,
                      kSumAt = 148, kSumSize = 8, kTypeAt = 156, kMagicAt = 257, kVersionAt = 263, kUserAt = 265,
                      kGroupAt = 297;

std::uint64_t octal(const RandomBytes& bytes, std::string_view field, const char* what) {
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  field = field.substr(0, field.find_first_of(" \0"sv));
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number, 8);
  if (error != std::errc() || end != field.data() + field.size())
    throw bytes.damaged(std::string("the ") + what + " in its tar header is no number");
  return number;
}

unsigned sum_of(std::string_view header) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < header.size(); ++i)
    sum += i >= kSumAt && i < kSumAt + kSumSize ? ' ' : static_cast<unsigned char>(header[i]);
  return sum;
}

bool is_header(const RandomBytes& bytes, std::string_view header) {
  return header.substr(kMagicAt, kMagic.size()) == kMagic && header.substr(kVersionAt, 2) == "00" &&
         octal(bytes, header.substr(kSumAt, kSumSize), "checksum") == sum_of(header);
}

// Of one record "LENGTH size=BYTES\n".
std::optional<std::uint64_t> size_in(std::string_view record) {
  const std::size_t blank = record.find(' ');
  constexpr std::string_view kKey = "size=";
  if (blank == record.npos || record.substr(blank + 1, kKey.size()) != kKey || record.back() != '\n') return {};
  const std::string_view digits = record.substr(blank + 1 + kKey.size(), record.size() - blank - kKey.size() - 2);
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  return size;
}

// Right-aligned among blanks, as the project's tools print numbers.
std::string padded(std::uint64_t number, std::size_t width) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number, 8).ptr;
  const std::string text(digits, end);
  return std::string(width - text.size(), ' ') + text;
}
// With the blank and the zero byte, or the blank alone, that end a field.
std::string field_of_8(std::uint64_t number) { return padded(number, 6) + ' '; }
std::string field_of_12(std::uint64_t number) { return padded(number, 11) + ' '; }

std::string header_of(std::string_view name, char type, std::uint64_t size) {
  std::string header(kBlock, '\0');
  header.replace(0, name.size(), name);
  header.replace(kSizeAt, kSizeSize, field_of_12(size));
  header[kTypeAt] = type;
  header.replace(kMagicAt, kMagic.size(), kMagic);
  header.replace(kVersionAt, 2, "00");
  return header;
}

void add_sum(std::string& header) { header.replace(kSumAt, 7, field_of_8(sum_of(header))); }

}  // namespace

std::optional<TarPart> find_in_tar(const RandomBytes& bytes) {
  if (bytes.size() < kBlock) return std::nullopt;
  const std::string header = bytes.read(0, kBlock);
  if (!is_header(bytes, header)) return std::nullopt;
  if (header[kTypeAt] != 'x')
    return TarPart{kBlock, octal(bytes, std::string_view(header).substr(kSizeAt, kSizeSize), "size")};
  const std::uint64_t length = octal(bytes, std::string_view(header).substr(kSizeAt, kSizeSize), "size");
  if (length == 0 || length > kBlock) throw bytes.damaged("its PAX header has " + std::to_string(length) + " bytes");
  const auto size = size_in(bytes.read(kBlock, static_cast<std::size_t>(length)));
  if (!size) throw bytes.damaged("its PAX header does not tell the size of the layer");
  if (!is_header(bytes, bytes.read(2 * kBlock, kBlock))) throw bytes.damaged("its second tar header is none");
  return TarPart{kTarPrologue, *size};
}

std::uint64_t finish_tar(int fd, std::uint64_t size) {
  const std::string record = " size=" + std::to_string(size) + "\n";
  // The length of a record counts its own digits.
  std::size_t length = record.size() + 1;
  if (std::to_string(length).size() > 1) length = record.size() + 2;
  std::string pax = header_of("overlaybd.pax", 'x', length);
  add_sum(pax);
  std::string content = std::to_string(length) + record;
  content.resize(kBlock);
  std::string commit = header_of("overlaybd.commit", '0', 0);
  commit.replace(kUserAt, 4, "root");
  commit.replace(kGroupAt, 4, "root");
  commit.replace(kModeAt, 7, field_of_8(0100644));
  commit.replace(kUidAt, 7, field_of_8(0));
  commit.replace(kGidAt, 7, field_of_8(0));
  commit.replace(kTimeAt, 12, field_of_12(0));
  add_sum(commit);
  write_at(fd, 0, pax + content + commit);
  const std::uint64_t end = kTarPrologue + size, whole = (end + kBlock - 1) / kBlock * kBlock;
  write_at(fd, end, std::string(static_cast<std::size_t>(whole - end) + 2 * kBlock, '\0'));
  return whole + 2 * kBlock;
}

}  // namespace dsec::layers::overlaybd
