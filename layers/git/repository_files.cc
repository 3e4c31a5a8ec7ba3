#include "layers/git/repository_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <git2.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>

#include "core/base/files.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

// Git itself follows alternates of alternates five deep.
constexpr int kAlternateDepth = 5;
constexpr std::uint64_t kRefFileLimit = 64 << 10;
constexpr std::uint64_t kListFileLimit = 1ull << 30;

// The content of a regular file; empty when there is none. Opened without blocking, so a FIFO is refused, not waited
// for.
std::optional<std::string> read_regular(const fs::path& path, std::uint64_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    throw system_error("open " + quote(path.native()));
  }
  struct stat info {};
  if (fstat(fd.get(), &info) < 0) throw system_error("stat " + quote(path.native()));
  if (S_ISDIR(info.st_mode)) return std::nullopt;
  if (!S_ISREG(info.st_mode)) throw failure("the repository's " + quote(path.native()) + " is no regular file");
  return attempt("cannot read " + quote(path.native()), [&] { return read_all(fd.get(), limit); });
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

template <typename Action>
void each_line(std::string_view text, Action&& action) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    action(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
}

struct DirectoryCloser {
  void operator()(DIR* directory) const noexcept { closedir(directory); }
};

// Names and kinds in a folder; nothing when it is not there.
template <typename Action>
void each_name(const fs::path& folder, Action&& action) {
  const std::unique_ptr<DIR, DirectoryCloser> directory(opendir(folder.c_str()));
  if (!directory) {
    if (errno == ENOENT || errno == ENOTDIR) return;
    throw system_error("open " + quote(folder.native()));
  }
  while (true) {
    errno = 0;
    const dirent* item = readdir(directory.get());
    if (!item) {
      if (errno) throw system_error("read " + quote(folder.native()));
      return;
    }
    const std::string_view name = item->d_name;
    if (name == "." || name == "..") continue;
    struct stat info {};
    if (fstatat(dirfd(directory.get()), item->d_name, &info, 0) < 0) continue;  // a dangling link names nothing
    action(name, info.st_mode);
  }
}

bool is_folder(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool looks_like_git_dir(const fs::path& path) {
  struct stat info {};
  if (::lstat((path / "HEAD").c_str(), &info) < 0) return false;
  return (is_folder(path / "objects") && is_folder(path / "refs")) || ::lstat((path / "commondir").c_str(), &info) == 0;
}

// What a .git file says: "gitdir: PATH", relative to the folder it lies in.
fs::path follow_git_file(const fs::path& file) {
  const std::string text = read_regular(file, kRefFileLimit).value_or("");
  if (!text.starts_with("gitdir:")) throw failure(quote(file.native()) + " is no 'gitdir:' file");
  fs::path target = file.parent_path() / trimmed(std::string_view(text).substr(7));
  if (!looks_like_git_dir(target))
    throw failure(quote(file.native()) + " names " + quote(target.native()) + ", which is no repository")
        .hint("git worktree repair, when a work tree or its repository was moved");
  return target;
}

void find_git_dir(const fs::path& path, RepositoryFiles& files) {
  struct stat info {};
  if (::stat(path.c_str(), &info) < 0) throw system_error("open the repository " + quote(path.native()));
  const fs::path inner = path / ".git";
  if (S_ISREG(info.st_mode)) {
    files.git_dir = follow_git_file(path);
    files.work_tree = path.parent_path();
  } else if (::stat(inner.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    files.git_dir = follow_git_file(inner);
    files.work_tree = path;
  } else if (looks_like_git_dir(inner)) {
    files.git_dir = inner;
    files.work_tree = path;
  } else if (looks_like_git_dir(path)) {
    files.git_dir = path;
    if (path.filename() == ".git") files.work_tree = path.parent_path();
  } else {
    Error error = failure(quote(path.native()) + " is no git repository");
    std::error_code ignored;
    for (fs::path up = fs::absolute(path, ignored).lexically_normal(); up.has_relative_path(); up = up.parent_path())
      if (is_folder(up / ".git")) {
        error.hint("git:" + up.native() + ", which is the repository that it lies in");
        break;
      }
    throw Error(error);
  }
  files.common_dir = files.git_dir;
  if (const auto common = read_regular(files.git_dir / "commondir", kRefFileLimit))
    files.common_dir = files.git_dir / trimmed(*common);
}

// The values of [extensions] (and the format version) in a configuration file; every other section is skipped over.
std::map<std::string, std::string> read_extensions(std::string_view config) {
  std::map<std::string, std::string> values;
  std::string section;
  each_line(config, [&](std::string_view raw) {
    std::string line = trimmed(raw);
    std::transform(line.begin(), line.end(), line.begin(), [](unsigned char c) { return std::tolower(c); });
    if (line.starts_with('[')) {
      const auto end = line.find(']');
      section = line.substr(1, end == std::string::npos ? end : end - 1);
      line = end == std::string::npos ? "" : trimmed(std::string_view(line).substr(end + 1));
    }
    if (section != "extensions" || line.empty() || line[0] == '#' || line[0] == ';') return;
    const auto equals = line.find('=');
    std::string value = equals == std::string::npos ? "true" : trimmed(std::string_view(line).substr(equals + 1));
    std::erase(value, '"');
    values[trimmed(std::string_view(line).substr(0, equals))] = value;
  });
  return values;
}

void read_format(RepositoryFiles& files) {
  const auto extensions = read_extensions(read_regular(files.common_dir / "config", kListFileLimit).value_or(""));
  const auto value = [&](const char* name) {
    const auto found = extensions.find(name);
    return found == extensions.end() ? std::string() : found->second;
  };
  if (const std::string format = value("objectformat"); !format.empty() && format != "sha1")
    throw refusal(Refusal::NotRepresentable,
                  "the repository's object format is " + quote(format) + ": dsec reads repositories with sha1 ids only")
        .hint("export the tree, for instance with git archive, and import it with tar:");
  files.partial |= extensions.contains("partialclone");
  const std::string storage = value("refstorage");
  files.reftable = !storage.empty() && storage != "files";
}

// A line of objects/info/alternates; git C-quotes a path that begins with a quote.
std::string alternate_path(std::string_view line) {
  if (!line.starts_with('"')) return std::string(line);
  std::string path;
  for (std::size_t i = 1; i < line.size() && line[i] != '"'; ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      path += line[i];
      continue;
    }
    const char escaped = line[++i];
    if (escaped >= '0' && escaped <= '3' && i + 2 < line.size()) {
      path += static_cast<char>((escaped - '0') << 6 | (line[i + 1] - '0') << 3 | (line[i + 2] - '0'));
      i += 2;
    } else {
      path += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
    }
  }
  return path;
}

void check_object_files(const fs::path& objects, RepositoryFiles& files) {
  const auto refuse = [](const fs::path& path) {
    throw failure("the repository's " + quote(path.native()) + " is neither a file nor a folder");
  };
  each_name(objects, [&](std::string_view name, mode_t mode) {
    if (!S_ISDIR(mode) && !S_ISREG(mode)) refuse(objects / name);
    if (!S_ISDIR(mode)) return;
    each_name(objects / name, [&](std::string_view inner, mode_t inner_mode) {
      if (!S_ISDIR(inner_mode) && !S_ISREG(inner_mode)) refuse(objects / name / inner);
      // How git marks a pack whose missing objects somebody promised.
      if (name == "pack" && inner.ends_with(".promisor")) files.partial = true;
    });
  });
}

void collect_object_dirs(const fs::path& objects, int depth, RepositoryFiles& files) {
  std::error_code failed;
  const fs::path real = fs::canonical(objects, failed);
  if (failed || !is_folder(real)) {
    files.missing_alternates.push_back(objects.native());
    return;
  }
  if (std::find(files.object_dirs.begin(), files.object_dirs.end(), real) != files.object_dirs.end()) return;
  check_object_files(real, files);
  files.object_dirs.push_back(real);
  if (depth == kAlternateDepth) return;
  const auto list = read_regular(real / "info/alternates", kListFileLimit);
  each_line(list.value_or(""), [&](std::string_view line) {
    if (line.empty() || line[0] == '#') return;
    collect_object_dirs(real / alternate_path(line), depth + 1, files);
  });
}

void add_ref_text(const std::string& name, const std::string& text, RepositoryFiles& files) {
  if (text.starts_with("ref:")) {
    files.symbolic[name] = trimmed(std::string_view(text).substr(4));
  } else if (const std::string id = trimmed(text); ObjectId::valid_hex(id)) {
    files.refs[name] = ObjectId::from_hex(id);
  }
  // Anything else is a broken ref: naming it fails like naming one that is not there.
}

void read_loose_refs(const fs::path& folder, const std::string& prefix, int depth, RepositoryFiles& files) {
  if (depth > 64) throw failure("the repository nests refs deeper than 64 levels at " + quote(prefix));
  each_name(folder, [&](std::string_view name, mode_t mode) {
    const std::string full = prefix + "/" + std::string(name);
    if (S_ISDIR(mode)) {
      read_loose_refs(folder / name, full, depth + 1, files);
    } else if (S_ISREG(mode) && !name.ends_with(".lock")) {
      if (const auto text = read_regular(folder / name, kRefFileLimit)) add_ref_text(full, *text, files);
    }
  });
}

void read_refs(RepositoryFiles& files) {
  const auto packed = read_regular(files.common_dir / "packed-refs", kListFileLimit);
  each_line(packed.value_or(""), [&](std::string_view line) {
    if (line.size() < 42 || line[0] == '#' || line[0] == '^') return;
    if (ObjectId::valid_hex(line.substr(0, 40)))
      files.refs[trimmed(line.substr(41))] = ObjectId::from_hex(line.substr(0, 40));
  });
  read_loose_refs(files.common_dir / "refs", "refs", 0, files);
  if (files.git_dir != files.common_dir) read_loose_refs(files.git_dir / "refs", "refs", 0, files);
  for (const auto& [name, first] : files.symbolic) {
    std::string target = first;
    for (int hops = 0; hops < 5 && files.symbolic.contains(target); ++hops) target = files.symbolic[target];
    if (const auto found = files.refs.find(target); found != files.refs.end()) files.refs[name] = found->second;
  }
  std::erase_if(files.refs, [](const auto& ref) {  // git ignores refs whose names it would not make
    int valid = 0;
    return git_reference_name_is_valid(&valid, ref.first.c_str()) < 0 || !valid;
  });
  const std::string head = read_regular(files.git_dir / "HEAD", kRefFileLimit).value_or("");
  files.head = trimmed(head.starts_with("ref:") ? std::string_view(head).substr(4) : std::string_view(head));
}

}  // namespace

RepositoryFiles RepositoryFiles::read(const fs::path& path) {
  start_libgit2();
  RepositoryFiles files;
  find_git_dir(path, files);
  read_format(files);
  collect_object_dirs(files.common_dir / "objects", 0, files);
  if (files.object_dirs.empty()) throw failure("the repository " + quote(path.native()) + " has no objects folder");
  if (!files.reftable) read_refs(files);
  const auto shallow = read_regular(files.common_dir / "shallow", kListFileLimit);
  each_line(shallow.value_or(""), [&](std::string_view line) {
    if (const std::string id = trimmed(line); ObjectId::valid_hex(id)) files.shallow.insert(ObjectId::from_hex(id));
  });
  return files;
}

}  // namespace dsec::layers
