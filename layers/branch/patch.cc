#include "layers/branch/patch.h"

#include <sys/stat.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/git/line_diff.h"

namespace dsec::layers {
namespace {

// Larger files are compared by size alone, like binary ones: comparing lines takes many times their size in memory.
constexpr off_t kLargestText = 32 << 20;
// Where git looks for a NUL.
constexpr std::size_t kLookedAt = 8000;

bool has_content(const FileState& state) { return S_ISREG(state.info.st_mode) || S_ISLNK(state.info.st_mode); }

std::uint64_t bytes_of(const std::optional<FileState>& state) {
  return state && has_content(*state) ? static_cast<std::uint64_t>(state->info.st_size) : 0;
}

std::string git_mode(const FileState& state) {
  if (S_ISLNK(state.info.st_mode)) return "120000";
  return state.info.st_mode & 0111 ? "100755" : "100644";
}

bool is_binary(const std::string& content) {
  return std::find(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(std::min(content.size(), kLookedAt)),
                   '\0') != content.begin() + static_cast<std::ptrdiff_t>(std::min(content.size(), kLookedAt));
}

/// Both sides of a change, or of the half of one that changes the type.
struct Sides {
  const FileState* before;
  const FileState* after;
  bool text = false, same = false;
  std::string old_content, new_content;

  Sides(const FileState* from, const FileState* to) : before(from), after(to) {
    bool readable = true;
    for (const FileState* side : {before, after})
      readable = readable && (!side || (has_content(*side) && side->info.st_size <= kLargestText));
    if (!readable) {
      compare_blindly();
      return;
    }
    if (before) old_content = before->content(kLargestText);
    if (after) new_content = after->content(kLargestText);
    same = before && after && old_content == new_content;
    text = !is_binary(old_content) && !is_binary(new_content);
  }

 private:
  // Devices and FIFOs by what they are; large files byte by byte.
  void compare_blindly() {
    if (!before || !after || (before->info.st_mode & S_IFMT) != (after->info.st_mode & S_IFMT)) return;
    same = S_ISREG(after->info.st_mode) ? before->info.st_size == after->info.st_size && same_bytes(*before, *after)
                                        : before->info.st_rdev == after->info.st_rdev;
  }
};

bool changes_type(const ChangedFile& file) {
  return file.before && file.after && (file.before->info.st_mode & S_IFMT) != (file.after->info.st_mode & S_IFMT);
}

bool changes_mode(const ChangedFile& file) {
  return file.before && file.after && has_content(*file.before) && git_mode(*file.before) != git_mode(*file.after);
}

// As git quotes names in headers: bytes beyond ASCII stay.
std::string quoted(const std::string& name) {
  std::string text;
  bool special = false;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f && c != '"' && c != '\\') {
      text += c;
      continue;
    }
    special = true;
    static constexpr std::string_view kPlain = "\a\b\t\n\v\f\r\"\\", kLetters = "abtnvfr\"\\";
    text += '\\';
    if (const std::size_t at = kPlain.find(c); at != std::string_view::npos)
      text += kLetters[at];
    else
      text += {static_cast<char>('0' + (byte >> 6)), static_cast<char>('0' + ((byte >> 3) & 7)),
               static_cast<char>('0' + (byte & 7))};
  }
  return special ? "\"" + text + "\"" : text;
}

std::string note(const std::string& path, const std::string& what) {
  return "# " + quoted("/" + path) + ": " + what + "\n";
}

std::string sizes(const ChangedFile& file) {
  if (!file.before) return "added, " + std::to_string(bytes_of(file.after)) + " bytes";
  if (!file.after) return "deleted, " + std::to_string(bytes_of(file.before)) + " bytes";
  return std::to_string(bytes_of(file.before)) + " -> " + std::to_string(bytes_of(file.after)) + " bytes";
}

/// One "diff --git" with its header.
std::string one_patch(const std::string& path, const Sides& sides) {
  const std::string a = quoted("a/" + path), b = quoted("b/" + path);
  // Names with blanks end with a tab, so that nobody takes what follows for a time.
  const char* end = path.find(' ') == std::string::npos ? "\n" : "\t\n";
  std::string text = "diff --git " + a + " " + b + "\n";
  if (!sides.before) text += "new file mode " + git_mode(*sides.after) + "\n";
  if (!sides.after) text += "deleted file mode " + git_mode(*sides.before) + "\n";
  if (sides.before && sides.after && git_mode(*sides.before) != git_mode(*sides.after))
    text += "old mode " + git_mode(*sides.before) + "\nnew mode " + git_mode(*sides.after) + "\n";
  const LineDiff lines = diff_lines(sides.old_content, sides.new_content);
  if (lines.hunks.empty()) return text;
  text += "--- " + (sides.before ? a + end : "/dev/null\n");
  text += "+++ " + (sides.after ? b + end : "/dev/null\n");
  return text + lines.hunks;
}

std::string patch_of(const ChangedFile& file) {
  const FileState* before = file.before ? &*file.before : nullptr;
  const FileState* after = file.after ? &*file.after : nullptr;
  for (const FileState* side : {before, after})
    if (side && !has_content(*side)) return note(file.path, "is or was no regular file, which no patch can say");
  if (changes_type(file)) {
    const Sides from(before, nullptr), to(nullptr, after);
    if (from.text && to.text) return one_patch(file.path, from) + one_patch(file.path, to);
    return note(file.path, "binary contents or another type, which this patch leaves out: " + sizes(file));
  }
  const Sides sides(before, after);
  if (sides.same && !changes_mode(file)) return "";
  if (sides.text || sides.same) return one_patch(file.path, sides);
  return note(file.path, "binary contents, which this patch leaves out: " + sizes(file));
}

}  // namespace

void write_patch(const ChangedFile& file, int fd) { write_all(fd, patch_of(file)); }

std::optional<engine::FileChange> measure(const ChangedFile& file) {
  using Kind = engine::Change::Kind;
  engine::FileChange change;
  change.change = {!file.before ? Kind::Added : !file.after ? Kind::Deleted : Kind::Modified, "/" + file.path};
  change.bytes_before = bytes_of(file.before);
  change.bytes_after = bytes_of(file.after);
  const Sides sides(file.before ? &*file.before : nullptr, file.after ? &*file.after : nullptr);
  if (sides.same && !changes_mode(file) && !changes_type(file)) return std::nullopt;
  change.binary = !sides.text && !sides.same;
  if (sides.same || change.binary) return change;
  const LineDiff lines = diff_lines(sides.old_content, sides.new_content);
  change.added_lines = lines.added;
  change.deleted_lines = lines.deleted;
  return change;
}

}  // namespace dsec::layers
