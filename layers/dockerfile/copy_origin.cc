#include "layers/dockerfile/copy_origin.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/dir/tree_digest.h"

namespace dsec::layers::dockerfile {
namespace fs = std::filesystem;
namespace {

constexpr int kMostLinks = 40;
constexpr std::size_t kPiece = 1 << 20;

std::deque<std::string> parts_of(const std::string& path) {
  std::deque<std::string> parts;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    if (slash > at) parts.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  return parts;
}

bool is_same(const struct stat& left, const struct stat& right) {
  const auto same = [](const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; };
  return left.st_dev == right.st_dev && left.st_ino == right.st_ino && left.st_size == right.st_size &&
         same(left.st_mtim, right.st_mtim) && same(left.st_ctim, right.st_ctim);
}

FoundEntry found_entry(int parent, const std::string& path, const struct stat& info) {
  FoundEntry found{.parent = parent, .name = path.empty() ? "." : base_of(path), .path = path};
  found.info = info;
  return found;
}

}  // namespace

std::string base_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}
std::string joined(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : name.empty() ? directory : directory + "/" + name;
}

std::string resolve_in(const std::function<std::optional<Entry>(const std::string&)>& find, const std::string& path) {
  std::deque<std::string> left = parts_of(path);
  std::string at;
  int links = 0;
  while (!left.empty()) {
    const std::string part = left.front();
    left.pop_front();
    if (part == ".") continue;
    if (part == "..") {
      at = parent_of(at);
      continue;
    }
    const std::string next = joined(at, part);
    const std::optional<Entry> entry = find(next);
    if (!entry || entry->type != EntryType::Symlink) {
      at = next;
      continue;
    }
    if (++links > kMostLinks) throw usage_error(quote(path) + " leads through too many symlinks");
    if (entry->target.starts_with('/')) at.clear();
    const std::deque<std::string> target = parts_of(entry->target);
    left.insert(left.begin(), target.begin(), target.end());
  }
  return at;
}

std::string CopyOrigin::resolve(const std::string& path) {
  return resolve_in([this](const std::string& at) { return find(at); }, path);
}

std::string CopyOrigin::text(const std::string& file, std::size_t limit) {
  std::string text;
  content(file, [&](std::string_view bytes) {
    if (text.size() + bytes.size() > limit)
      throw failure(quote(file) + " has more than " + std::to_string(limit) + " bytes");
    text += bytes;
  });
  return text;
}

Digest CopyOrigin::content_digest(const std::string& file) {
  Sha256 sum;
  content(file, [&](std::string_view bytes) { sum.update(bytes); });
  return sum.finish();
}

// ---- a folder ----

ContextOrigin::ContextOrigin(const fs::path& folder, IgnoreList ignore, fs::path digests)
    : folder_(folder),
      root_(open_file(folder, O_RDONLY | O_DIRECTORY)),
      reader_(folder),
      ignore_(std::move(ignore)),
      digests_(std::move(digests)) {
  struct stat info {};
  if (::fstat(root_.get(), &info) != 0) throw system_error("stat " + quote(folder.native()));
  device_ = info.st_dev;
}

UniqueFd ContextOrigin::folder_of(const std::string& path) const {
  open_how how{};
  how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
  const std::string name = path.empty() ? "." : path;
  UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, root_.get(), name.c_str(), &how, sizeof how)));
  if (!fd && errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != EXDEV)
    throw system_error("open " + quote((folder_ / path).native()));
  return fd;
}

std::optional<Entry> ContextOrigin::find(const std::string& path) {
  const auto known = entries_.find(path);
  return known != entries_.end() ? known->second : entries_.emplace(path, look(path)).first->second;
}

std::optional<Entry> ContextOrigin::look(const std::string& path) {
  // A whole folder is asked for one after the other.
  if (const std::string folder = parent_of(path); !last_ || folder != last_folder_) {
    last_ = folder_of(folder);
    last_folder_ = folder;
  }
  if (!last_) return std::nullopt;
  struct stat info {};
  if (::fstatat(last_.get(), path.empty() ? "." : base_of(path).c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw system_error("stat " + quote((folder_ / path).native()));
  }
  if (info.st_dev != device_ || S_ISSOCK(info.st_mode)) return std::nullopt;
  const FoundEntry found = found_entry(last_.get(), path, info);
  Entry entry = entry_of(found);
  if (entry.type == EntryType::Symlink) entry.target = reader_.link_target(found);
  entry.xattrs = portable_xattrs(reader_.xattrs(found));
  if (entry.type == EntryType::File) found_.emplace(path, info);
  return entry;
}

std::vector<std::string> ContextOrigin::names(const std::string& directory) {
  if (const auto known = names_.find(directory); known != names_.end()) return known->second;
  const UniqueFd folder = folder_of(directory);
  if (!folder) throw failure(quote(directory) + " changed while it was read");
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at("/proc/self/fd/" + std::to_string(folder.get()), error), end; !error && at != end;
       at.increment(error))
    names.push_back(at->path().filename().native());
  if (error) throw system_error("read " + quote((folder_ / directory).native()), error.value());
  std::sort(names.begin(), names.end());
  return names_.emplace(directory, std::move(names)).first->second;
}

Digest ContextOrigin::content_digest(const std::string& file) {
  if (const auto known = contents_.find(file); known != contents_.end()) return known->second;
  const struct stat& info = found_.at(file);
  std::optional<Digest> digest = digests_.find(file, info);
  if (!digest) {
    digest = CopyOrigin::content_digest(file);
    digests_.put(file, info, *digest);
  }
  return contents_.emplace(file, *std::move(digest)).first->second;
}

void ContextOrigin::content(const std::string& file, const std::function<void(std::string_view)>& take) {
  const UniqueFd parent = folder_of(parent_of(file));
  if (!parent) throw failure(quote(file) + " changed while it was read");
  reader_.content(found_entry(parent.get(), file, found_.at(file)), take);
}

FileSpan ContextOrigin::open(const std::string& file) const {
  const UniqueFd parent = folder_of(parent_of(file));
  if (!parent) throw failure(quote(file) + " changed while it was read");
  UniqueFd fd(::openat(parent.get(), base_of(file).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) throw system_error("open " + quote((folder_ / file).native()));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw system_error("stat " + quote((folder_ / file).native()));
  if (!is_same(info, found_.at(file))) throw failure(quote(file) + " changed while it was read");
  return FileSpan::open("/proc/self/fd/" + std::to_string(fd.get()));
}

Digest ContextOrigin::digest() {
  TreeDigest digest;
  std::vector<std::string> waiting = {""};
  while (!waiting.empty()) {
    const std::string path = std::move(waiting.back());
    waiting.pop_back();
    std::optional<Entry> entry = path.empty() ? find("") : find(path);
    if (!entry) continue;
    const bool left_out = !path.empty() && ignore_.excludes(path);
    if (!left_out && !path.empty()) {
      entry->uid = entry->gid = 0;
      entry->mtime = {};
      digest.entry(*entry);
      if (entry->type == EntryType::File) digest.data(content_digest(path).hex());
    }
    if (entry->type != EntryType::Directory || (left_out && !ignore_.has_exceptions())) continue;
    std::vector<std::string> inside = names(path);
    for (auto name = inside.rbegin(); name != inside.rend(); ++name) waiting.push_back(joined(path, *name));
  }
  digests_.save();
  return digest.finish();
}

// ---- layers ----

StackOrigin::StackOrigin(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top) {
  if (!bottom_to_top.empty()) tree_.emplace(store, bottom_to_top, MergedTree::Contents::Yes);
  for (const engine::StoredLayer& layer : bottom_to_top)
    implicit_.emplace_back(layer.manifest.implicit_parents.begin(), layer.manifest.implicit_parents.end());
}

std::optional<Entry> StackOrigin::find(const std::string& path) {
  if (!tree_)
    return path.empty() ? std::optional(Entry{.path = "", .type = EntryType::Directory, .mode = 0755}) : std::nullopt;
  const std::optional<MergedNode> node = tree_->find(path);
  if (!node || node->is_whiteout()) return std::nullopt;
  const auto meant = std::find_if(node->parts.begin(), node->parts.end(), [&](const StackedInode& part) {
    return !part.inode.is_directory() || !implicit_[tree_->layer_of(part.image)].contains(path);
  });
  const StackedInode& shown = meant == node->parts.end() ? node->top() : *meant;
  Entry entry = to_entry(tree_->image(shown.image), path, shown.inode);
  entry.xattrs = portable_xattrs(std::move(entry.xattrs));
  return entry;
}

std::vector<std::string> StackOrigin::names(const std::string& directory) {
  std::vector<std::string> names;
  if (!tree_) return names;
  const std::optional<MergedNode> node = tree_->find(directory);
  if (!node || !node->is_directory()) return names;
  for (const auto& [name, child] : tree_->children(*node))
    if (!child.is_whiteout()) names.push_back(name);
  return names;
}

void StackOrigin::content(const std::string& file, const std::function<void(std::string_view)>& take) {
  const std::optional<MergedNode> node = tree_ ? tree_->find(file) : std::nullopt;
  if (!node || !node->top().inode.is_file()) throw failure(quote(file) + " is no file");
  const StackedInode& top = node->top();
  std::string piece(std::min<std::uint64_t>(kPiece, top.inode.size), '\0');
  for (std::uint64_t at = 0; at < top.inode.size;) {
    const std::size_t got = tree_->image(top.image).read(top.inode, at, piece.data(), piece.size());
    if (got == 0) throw failure("the contents of " + quote(file) + " end early");
    take(std::string_view(piece).substr(0, got));
    at += got;
  }
}

}  // namespace dsec::layers::dockerfile
