#include "layers/dockerfile/file_digests.h"

#include <algorithm>
#include <ctime>
#include <string_view>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::layers::dockerfile {
namespace {

constexpr std::string_view kHeader = "dsec file digests 1\n";
constexpr std::size_t kHexDigits = 64;
constexpr std::time_t kSettled = 2;  // seconds

std::string mark_of(const struct stat& info) {
  std::string mark;
  for (const auto number :
       {static_cast<std::int64_t>(info.st_dev), static_cast<std::int64_t>(info.st_ino),
        static_cast<std::int64_t>(info.st_size), static_cast<std::int64_t>(info.st_mtim.tv_sec),
        static_cast<std::int64_t>(info.st_mtim.tv_nsec), static_cast<std::int64_t>(info.st_ctim.tv_sec),
        static_cast<std::int64_t>(info.st_ctim.tv_nsec)})
    mark += (mark.empty() ? "" : ",") + std::to_string(number);
  return mark;
}

}  // namespace

FileDigests::FileDigests(std::filesystem::path file) : file_(std::move(file)) {
  if (!file_.empty()) load();
}

// "DIGEST MARK PATH", a line each.
void FileDigests::load() {
  std::string text;
  try {
    if (!std::filesystem::exists(file_)) return;
    text = read_file(file_);
  } catch (const Error&) {
    return;
  }
  std::string_view rest = text;
  if (!rest.starts_with(kHeader)) return;
  rest.remove_prefix(kHeader.size());
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::size_t blank = line.find(' ', kHexDigits + 1);
    if (line.size() <= kHexDigits || line[kHexDigits] != ' ' || blank == std::string_view::npos ||
        !Digest::valid_hex(line.substr(0, kHexDigits)))
      continue;
    seen_.insert_or_assign(std::string(line.substr(blank + 1)),
                           Seen{std::string(line.substr(kHexDigits + 1, blank - kHexDigits - 1)),
                                Digest::parse(line.substr(0, kHexDigits))});
  }
}

std::optional<Digest> FileDigests::find(const std::string& path, const struct stat& info) {
  const auto found = seen_.find(path);
  if (found == seen_.end() || found->second.mark != mark_of(info)) return std::nullopt;
  found->second.used = true;
  return found->second.digest;
}

void FileDigests::put(const std::string& path, const struct stat& info, const Digest& digest) {
  if (file_.empty() || path.find('\n') != std::string::npos || info.st_ctim.tv_sec + kSettled > std::time(nullptr))
    return;
  seen_.insert_or_assign(path, Seen{mark_of(info), digest, true});
  changed_ = true;
}

void FileDigests::save() noexcept {
  if (file_.empty() || !changed_) return;
  changed_ = false;
  try {
    std::string text(kHeader);
    for (const auto& [path, seen] : seen_)
      if (seen.used) text += seen.digest.hex() + " " + seen.mark + " " + path + "\n";
    make_directories(file_.parent_path(), 0700);
    write_file_atomic(file_, text, 0600);
  } catch (const std::exception&) {
    // The next build reads the files again.
  }
}

}  // namespace dsec::layers::dockerfile
