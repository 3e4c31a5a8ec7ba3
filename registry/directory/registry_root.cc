#include "registry/directory/registry_root.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "core/base/directory_names.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/directory/new_file.h"
#include "registry/directory/three_fs.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kNegativeLookup = kThreeFsKnowsNoName + std::chrono::milliseconds(1500),
                                    kLookAgain{250};

UniqueFd open_directory(int parent, const std::string& name) {
  return UniqueFd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  for (const fs::path& part : fs::path(name)) parts.push_back(part.native());
  return parts;
}

// Nothing but what another process that makes the registry may have put there.
bool is_vacant(const fs::path& directory) {
  for (const std::string& name : directory_names(directory)) {
    if (!name.starts_with(".tmp-") && name != "lost+found") return false;
  }
  return true;
}

}  // namespace

void sync_directory_fd(int fd) {
  if (::fsync(fd) != 0 && errno != EINVAL && errno != ENOSYS) throw system_error("fsync a directory");
}

RegistryRoot RegistryRoot::open(const RegistryAddress& address) {
  return attempt("cannot use registry " + address.shown(), [&] {
    if (address.kind == RegistryAddress::Kind::ThreeFs && !address.allow_any_fs) require_three_fs(address.root);
    UniqueFd fd(::open(address.root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) throw system_error("open " + quote(address.root.native()));
    RegistryRoot root(address, std::move(fd));
    root.check_marker();
    return root;
  });
}

RegistryRoot RegistryRoot::open_or_create(const RegistryAddress& address) {
  attempt("cannot make registry " + address.shown(), [&] {
    // Looked at before anything is made: a missing mount must not be taken for an empty registry.
    if (address.kind == RegistryAddress::Kind::ThreeFs && !address.allow_any_fs) require_three_fs(address.root);
    std::error_code missing;
    if (fs::exists(fs::symlink_status(address.root / kMarker, missing))) return;
    make_directories(address.root, 0777);
    if (!is_vacant(address.root)) {
      if (fs::exists(fs::symlink_status(address.root / kMarker, missing))) return;  // made meanwhile
      throw usage_error("directory " + quote(address.root.native()) + " is not empty and holds no registry")
          .hint("name an empty or a new directory");
    }
    const UniqueFd fd = dsec::open_file(address.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    NewFile file(fd.get(), "marker");
    write_all(file.fd(), marker_text());
    file.name_once(std::string(kMarker));
  });
  return open(address);
}

void RegistryRoot::check_marker() const {
  const auto text = read_file(std::string(kMarker), kLargestMarker, Missing::Expected);
  if (!text)
    throw usage_error("there is no " + std::string(kMarker) + " in " + quote(address_.root.native()))
        .hint("dsec publish REF --to URL makes a registry of an empty directory");
  check_marker_text(*text);
}

UniqueFd RegistryRoot::walk(const std::string& name, Absent absent) const {
  UniqueFd directory(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!directory) throw system_error("duplicate a descriptor");
  std::vector<std::string> parts = parts_of(name);
  parts.pop_back();
  for (const std::string& part : parts) {
    UniqueFd below = open_directory(directory.get(), part);
    if (!below && errno == ENOENT) {
      if (absent == Absent::Stop) return UniqueFd();
      if (::mkdirat(directory.get(), part.c_str(), 0777) != 0 && errno != EEXIST)
        throw system_error("mkdir " + quote(part) + " on the way to " + quote(path(name).native()));
      sync_directory_fd(directory.get());
      below = open_directory(directory.get(), part);
    }
    if (!below) throw system_error("open " + quote(part) + " on the way to " + quote(path(name).native()));
    directory = std::move(below);
  }
  return directory;
}

UniqueFd RegistryRoot::parent_of(const std::string& name) const { return walk(name, Absent::Stop); }
UniqueFd RegistryRoot::make_parent(const std::string& name) const { return walk(name, Absent::Make); }

// Whether it is in its directory as far as 3FS says: lists come from there each time, while a name that is looked for
// may be remembered as missing, or as that of a file which is gone.
bool RegistryRoot::is_listed(const std::string& name) const {
  UniqueFd directory(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  for (const std::string& part : parts_of(name)) {
    const std::vector<std::string> names = directory_names(directory.get(), "a directory on the way to " + quote(name));
    if (!std::binary_search(names.begin(), names.end(), part)) return false;
    directory = open_directory(directory.get(), part);
    // Also the file itself, which is no directory.
    if (!directory) return true;
  }
  return true;
}

template <typename Find>
auto RegistryRoot::find_patiently(const std::string& name, Missing missing, Find&& find) const {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    if (auto found = find(); found || address_.kind != RegistryAddress::Kind::ThreeFs) return found;
    const auto waited = std::chrono::steady_clock::now() - start;
    const auto patience = is_listed(name)                ? kThreeFsKnowsName + kLookAgain
                          : missing == Missing::Expected ? kNegativeLookup
                                                         : std::chrono::milliseconds(0);
    if (waited >= patience) return find();
    std::this_thread::sleep_for(kLookAgain);
  }
}

UniqueFd RegistryRoot::open_file(const std::string& name, Missing missing) const {
  return find_patiently(name, missing, [&] {
    UniqueFd file;
    if (const UniqueFd parent = parent_of(name)) {
      // Without O_NONBLOCK a FIFO of that name would hold us up.
      file = UniqueFd(
          ::openat(parent.get(), last_part(name).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
      if (!file && errno != ENOENT) throw system_error("open " + quote(path(name).native()));
    }
    struct stat status = {};
    if (file && ::fstat(file.get(), &status) != 0) {
      // The 3FS client knows the name of a file that is gone.
      if (errno != ENOENT && errno != ESTALE) throw system_error("stat " + quote(path(name).native()));
      file.reset();
    }
    if (file && !S_ISREG(status.st_mode)) throw failure(quote(path(name).native()) + " is no regular file");
    return file;
  });
}

std::optional<std::string> RegistryRoot::read_file(const std::string& name, std::uint64_t limit,
                                                   Missing missing) const {
  const UniqueFd file = open_file(name, missing);
  if (!file) return std::nullopt;
  return attempt("cannot read " + quote(path(name).native()), [&] { return read_all(file.get(), limit); });
}

std::optional<struct stat> RegistryRoot::look(const std::string& name) const {
  return find_patiently(name, Missing::Possible, [&] { return look_once(name); });
}

std::optional<struct stat> RegistryRoot::look_once(const std::string& name) const {
  const UniqueFd parent = parent_of(name);
  if (!parent) return std::nullopt;
  // A client of 3FS knows a name for longer than there is one; whether its file still exists it has to ask.
  const int sync = address_.kind == RegistryAddress::Kind::ThreeFs ? AT_STATX_FORCE_SYNC : 0;
  struct statx found;
  if (::statx(parent.get(), last_part(name).c_str(), AT_SYMLINK_NOFOLLOW | sync, STATX_BASIC_STATS, &found) != 0) {
    if (errno == ENOENT || errno == ESTALE) return std::nullopt;
    throw system_error("stat " + quote(path(name).native()));
  }
  if (found.stx_nlink == 0) return std::nullopt;
  struct stat status = {};
  status.st_mode = found.stx_mode;
  status.st_size = static_cast<off_t>(found.stx_size);
  status.st_mtime = found.stx_mtime.tv_sec;
  return status;
}

std::vector<std::string> RegistryRoot::list(const std::string& directory) const {
  const UniqueFd fd = find_patiently(directory, Missing::Possible, [&] {
    const UniqueFd parent = parent_of(directory);
    UniqueFd found = parent ? open_directory(parent.get(), last_part(directory)) : UniqueFd();
    if (parent && !found && errno != ENOENT) throw system_error("open " + quote(path(directory).native()));
    return found;
  });
  if (!fd) return {};
  return directory_names(fd.get(), quote(path(directory).native()));
}

// Files lie at one depth; what lies above them and is no directory does not belong here.
void RegistryRoot::add_names(const std::string& directory, std::size_t depth, const std::string& prefix,
                             std::vector<std::string>& found) const {
  for (const std::string& part : list(directory)) {
    const std::string name = directory + "/" + part;
    if (part.starts_with('.') || !name.starts_with(prefix)) continue;
    if (depth == kDepth)
      found.push_back(name);
    else if (const auto status = look(name); status && S_ISDIR(status->st_mode))
      add_names(name, depth + 1, prefix, found);
  }
}

std::vector<std::string> RegistryRoot::names(const std::string& prefix) const {
  std::vector<std::string> found;
  const std::string top = prefix.substr(0, prefix.rfind('/'));
  const auto slashes = static_cast<std::size_t>(std::count(top.begin(), top.end(), '/'));
  add_names(top, slashes + 2, prefix, found);
  std::sort(found.begin(), found.end());
  return found;
}

void RegistryRoot::remove(const std::string& name) const {
  const UniqueFd parent = parent_of(name);
  if (parent && ::unlinkat(parent.get(), last_part(name).c_str(), 0) != 0 && errno != ENOENT)
    throw system_error("remove " + quote(path(name).native()));
}

bool RegistryRoot::rename(const std::string& from, const std::string& to) const {
  const UniqueFd parent = parent_of(from);
  if (!parent) return false;
  if (::renameat(parent.get(), last_part(from).c_str(), parent.get(), last_part(to).c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  throw system_error("rename " + quote(path(from).native()));
}

}  // namespace dsec::registry
