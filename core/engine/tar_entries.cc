#include "core/engine/tar_entries.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base/digest.h"
#include "core/base/error.h"

namespace dsec::engine {
namespace {

constexpr TarHeader::Field kMode{100, 8}, kSize{124, 12}, kChecksum{148, 8}, kName{0, 100}, kLink{157, 100},
    kPrefix{345, 155};
constexpr std::size_t kType = 156, kMagic = 257;
// A name that comes as content of an entry of its own.
constexpr std::size_t kLongestName = 1 << 16;

std::string_view text_of(std::string_view block, TarHeader::Field field) {
  const std::string_view text = block.substr(field.at, field.size);
  return text.substr(0, text.find('\0'));
}

std::optional<std::uint64_t> number_of(std::string_view block, TarHeader::Field field) {
  const std::string_view text = block.substr(field.at, field.size);
  std::uint64_t value = 0;
  if (static_cast<unsigned char>(text[0]) == 0x80) {
    for (const char c : text.substr(1)) {
      if (value >> 55) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  bool any = false;
  for (const char c : text) {
    if (c >= '0' && c <= '7') {
      value = value * 8 + static_cast<std::uint64_t>(c - '0');
      any = true;
    } else if (any || (c != ' ' && c != '\0')) {
      break;
    }
  }
  return value;
}

std::uint32_t sum_of(std::string_view block) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i)
    sum += i >= kChecksum.at && i < kChecksum.at + kChecksum.size ? ' ' : static_cast<unsigned char>(block[i]);
  return sum;
}

bool is_zero(std::string_view block) {
  return std::all_of(block.begin(), block.end(), [](char c) { return c == '\0'; });
}

std::optional<TarHeader> header_of(std::string_view block) {
  const std::optional<std::uint64_t> size = number_of(block, kSize), sum = number_of(block, kChecksum);
  if (!size || sum != sum_of(block) || *size > std::uint64_t{1} << 62) return std::nullopt;
  TarHeader header;
  header.name = text_of(block, kName);
  if (block.substr(kMagic, 6) == std::string_view("ustar\0", 6))
    if (const std::string_view prefix = text_of(block, kPrefix); !prefix.empty())
      header.name = std::string(prefix) + "/" + header.name;
  header.link = text_of(block, kLink);
  header.type = block[kType] == '\0' ? '0' : block[kType];
  header.size = header.type == '1' || header.type == '2' ? 0 : *size;
  header.mode = static_cast<std::uint32_t>(number_of(block, kMode).value_or(0) & 07777);
  return header;
}

// Of the records "LENGTH KEY=VALUE\n" of a POSIX header the value of one key.
std::optional<std::string> pax_value(std::string_view records, std::string_view key) {
  std::optional<std::string> found;
  while (!records.empty()) {
    std::size_t length = 0, digits = 0;
    while (digits < records.size() && records[digits] >= '0' && records[digits] <= '9' && length < kLongestName * 2)
      length = length * 10 + static_cast<std::size_t>(records[digits++] - '0');
    if (digits >= records.size() || records[digits] != ' ' || length <= digits + 1 || length > records.size()) break;
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    if (record.starts_with(key) && record.substr(key.size()).starts_with('='))
      found = std::string(record.substr(key.size() + 1));
    records.remove_prefix(length);
  }
  return found;
}

template <typename Take>
void read_from_beginning(int fd, Take&& take) {
  std::vector<char> buffer(256u << 10);
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read the files that were copied");
    if (got == 0) return;
    take(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
    at += got;
  }
}

/// Puts names that come in entries of their own to what they belong to.
class Entries {
 public:
  struct Entry {
    std::string name, link;
    TarHeader header;
    Sha256 content;
  };
  explicit Entries(std::function<void(Entry&)> take)
      : take_(std::move(take)),
        walk_({.header = [this](const TarHeader& header, std::string_view, std::uint64_t) { begin(header); },
               .data = [this](std::string_view data, std::uint64_t) { content(data); }}) {}

  void push(std::string_view data) { walk_.push(data); }
  void finish() { end(); }
  bool broken() const { return walk_.broken(); }

 private:
  void begin(const TarHeader& header) {
    end();
    current_.emplace(Entry{header.name, header.link, header, Sha256()});
    text_.clear();
    if (header.type == 'x' || header.type == 'L' || header.type == 'K' || header.type == 'g') return;
    if (long_name_) current_->name = *std::exchange(long_name_, std::nullopt);
    if (long_link_) current_->link = *std::exchange(long_link_, std::nullopt);
  }
  void content(std::string_view data) {
    if (!current_ || walk_.broken()) return;
    current_->content.update(data);
    if (text_.size() < kLongestName) text_ += data.substr(0, kLongestName - text_.size());
  }
  void end() {
    if (!current_) return;
    switch (current_->header.type) {
      case 'x':
        if (auto name = pax_value(text_, "path")) long_name_ = std::move(name);
        if (auto link = pax_value(text_, "linkpath")) long_link_ = std::move(link);
        break;
      case 'L':
        long_name_ = text_.substr(0, text_.find('\0'));
        break;
      case 'K':
        long_link_ = text_.substr(0, text_.find('\0'));
        break;
      case 'g':
        break;
      default:
        take_(*current_);
    }
    current_.reset();
  }

  const std::function<void(Entry&)> take_;
  TarWalk walk_;
  std::optional<Entry> current_;
  std::optional<std::string> long_name_, long_link_;
  std::string text_;
};

}  // namespace

void TarWalk::push(std::string_view data) {
  while (!data.empty()) {
    if (broken_ || data_ > 0) {
      const std::string_view part =
          broken_ ? data : data.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(data_, data.size())));
      sink_.data(part, at_);
      if (!broken_) data_ -= part.size();
      at_ += part.size();
      data.remove_prefix(part.size());
    } else if (padding_ > 0) {
      const auto skipped = static_cast<std::size_t>(std::min<std::uint64_t>(padding_, data.size()));
      // What fills up a block means nothing, and somebody may have put something there.
      sink_.data(data.substr(0, skipped), at_);
      padding_ -= skipped;
      at_ += skipped;
      data.remove_prefix(skipped);
    } else {
      const std::size_t taken = std::min(TarHeader::kSize - block_.size(), data.size());
      block_ += data.substr(0, taken);
      at_ += taken;
      data.remove_prefix(taken);
      if (block_.size() < TarHeader::kSize) return;
      const std::uint64_t begin = at_ - block_.size();
      if (const auto header = header_of(block_)) {
        data_ = header->size;
        padding_ = (TarHeader::kSize - data_ % TarHeader::kSize) % TarHeader::kSize;
        sink_.header(*header, block_, begin);
      } else {
        broken_ = !is_zero(block_);
        sink_.data(block_, begin);
      }
      block_.clear();
    }
  }
}

void TarWalk::finish() {
  if (!block_.empty()) sink_.data(block_, at_ - block_.size());
  block_.clear();
}

void set_tar_checksum(std::string& block) {
  char digits[8];
  ::snprintf(digits, sizeof digits, "%06o", sum_of(block));
  block.replace(kChecksum.at, 7, digits, 7);
  block[kChecksum.at + 7] = ' ';
}

std::string list_tar(int fd, std::size_t most) {
  std::string lines;
  std::size_t count = 0;
  Entries entries([&](Entries::Entry& entry) {
    if (++count > most) return;
    char mode[8];
    ::snprintf(mode, sizeof mode, "%04o", entry.header.mode);
    if (entry.header.type == '1' || entry.header.type == '2')
      lines += "link " + entry.name + " -> " + entry.link + "\n";
    else if (entry.header.type == '0')
      lines += std::string(mode) + " " + std::to_string(entry.header.size) + " " + entry.name + " " +
               entry.content.finish().brief() + "\n";
    else
      lines += std::string(mode) + " " + entry.header.type + " " + entry.name + "\n";
  });
  read_from_beginning(fd, [&](std::string_view data) { entries.push(data); });
  entries.finish();
  if (count > most) lines += "and " + std::to_string(count - most) + " more\n";
  if (entries.broken()) lines += "what follows is no tar stream\n";
  return lines;
}

void for_each_tar_entry(int fd, const std::function<void(const TarEntry&)>& take) {
  Entries entries([&](Entries::Entry& entry) { take({entry.name, entry.header.type, entry.header.size}); });
  read_from_beginning(fd, [&](std::string_view data) { entries.push(data); });
  entries.finish();
}

}  // namespace dsec::engine
