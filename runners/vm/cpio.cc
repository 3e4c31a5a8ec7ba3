#include "runners/vm/cpio.h"

#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <limits>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

constexpr std::string_view kMagic = "070701";
constexpr std::string_view kLast = "TRAILER!!!";
constexpr std::size_t kAlignment = 4;
/// So that what is appended to it begins where the kernel looks for another archive.
constexpr std::size_t kBlock = 512;

}  // namespace

void CpioWriter::pad() { out_.resize((out_.size() + kAlignment - 1) / kAlignment * kAlignment, '\0'); }

void CpioWriter::add(std::string_view path, std::uint32_t mode, std::string_view content, std::uint32_t major,
                     std::uint32_t minor) {
  if (content.size() > std::numeric_limits<std::uint32_t>::max())
    throw Error(ErrorKind::Internal, quote(std::string(path)) + " is too large for an initramfs");
  const std::array<std::uint32_t, 13> fields = {next_inode_++,
                                                mode,
                                                0,  // user
                                                0,  // group
                                                1,  // links
                                                0,  // time
                                                static_cast<std::uint32_t>(content.size()),
                                                0,  // device of the file
                                                0,
                                                major,
                                                minor,
                                                static_cast<std::uint32_t>(path.size() + 1),
                                                0};  // checksum, which this form has none of
  out_ += kMagic;
  for (const std::uint32_t field : fields) {
    std::array<char, 9> text;
    std::snprintf(text.data(), text.size(), "%08X", field);
    out_ += text.data();
  }
  out_ += path;
  out_ += '\0';
  pad();
  out_ += content;
  pad();
}

void CpioWriter::directory(std::string_view path, std::uint32_t mode) { add(path, S_IFDIR | mode, ""); }

void CpioWriter::file(std::string_view path, std::string_view content, std::uint32_t mode) {
  add(path, S_IFREG | mode, content);
}

void CpioWriter::character_device(std::string_view path, std::uint32_t major, std::uint32_t minor, std::uint32_t mode) {
  add(path, S_IFCHR | mode, "", major, minor);
}

std::string CpioWriter::finish() {
  next_inode_ = 0;
  add(kLast, 0, "");
  out_.resize((out_.size() + kBlock - 1) / kBlock * kBlock, '\0');
  return std::move(out_);
}

}  // namespace dsec::runners
