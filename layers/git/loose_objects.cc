#include "layers/git/loose_objects.h"

#include <dirent.h>
#include <fcntl.h>
#include <git2.h>
#include <git2/sys/odb_backend.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/tar_header.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kPiece = 64 << 10;
// git's own bound for "TYPE SIZE" and the NUL.
constexpr std::size_t kHeader = 32;

struct Backend {
  git_odb_backend calls{};  // libgit2 knows the address of this member alone
  fs::path folder;
};

const fs::path& folder_of(git_odb_backend* backend) { return reinterpret_cast<Backend*>(backend)->folder; }

std::string hex_of(const git_oid* id) {
  std::array<char, GIT_OID_HEXSZ> hex{};
  git_oid_fmt(hex.data(), id);
  return {hex.begin(), hex.end()};
}

fs::path path_of(git_odb_backend* backend, const git_oid* id) {
  const std::string hex = hex_of(id);
  return folder_of(backend) / hex.substr(0, 2) / hex.substr(2);
}

/// The unpacked bytes of one file of zlib's format.
class Unpacked {
 public:
  explicit Unpacked(UniqueFd file) : file_(std::move(file)) {
    if (inflateInit(&stream_) != Z_OK) throw std::bad_alloc();
  }
  ~Unpacked() { inflateEnd(&stream_); }
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;

  /// Fewer than `size` only at the end.
  std::size_t read(char* out, std::size_t size) {
    std::size_t done = 0;
    while (done < size && !ended_) {
      if (stream_.avail_in == 0 && !refill()) throw failure("it ends in the middle");
      const auto room = static_cast<uInt>(std::min<std::size_t>(size - done, 1u << 30));
      stream_.next_out = reinterpret_cast<Bytef*>(out + done);
      stream_.avail_out = room;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_MEM_ERROR) throw std::bad_alloc();
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
        throw failure(std::string("its zlib data is damaged: ") + (stream_.msg ? stream_.msg : "unknown reason"));
      done += room - stream_.avail_out;
      ended_ = code == Z_STREAM_END;
    }
    return done;
  }

  void expect_end() {
    char more = 0;
    if (read(&more, 1) > 0) throw failure("it is longer than its header says");
    if (stream_.avail_in > 0 || refill()) throw failure("bytes follow its end");
  }

 private:
  bool refill() {
    ssize_t got = 0;
    while ((got = ::read(file_.get(), piece_.get(), kPiece)) < 0)
      if (errno != EINTR) throw system_error("read it");
    stream_.next_in = reinterpret_cast<Bytef*>(piece_.get());
    stream_.avail_in = static_cast<uInt>(got);
    return got > 0;
  }

  UniqueFd file_;
  z_stream stream_{};
  std::unique_ptr<char[]> piece_ = std::make_unique<char[]>(kPiece);
  bool ended_ = false;
};

struct Header {
  git_object_t type = GIT_OBJECT_INVALID;
  std::uint64_t size = 0;
  std::string rest;  // of what was unpacked with it: the content begins so
};

Header read_header(Unpacked& unpacked) {
  std::string head(kHeader, '\0');
  head.resize(unpacked.read(head.data(), head.size()));
  const auto blank = head.find(' '), end = head.find('\0');
  if (end == std::string::npos || blank > end) throw failure("its header is malformed");
  Header header;
  header.type = git_object_string2type(head.substr(0, blank).c_str());
  const auto size = parse_decimal(std::string_view(head).substr(blank + 1, end - blank - 1));
  if (!git_object_typeisloose(header.type) || !size) throw failure("its header is malformed");
  header.size = *size;
  header.rest = head.substr(end + 1);
  if (header.rest.size() > header.size) throw failure("it is longer than its header says");
  return header;
}

std::uint64_t memory_allowed() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) /
         2;
}

void read_whole(Unpacked& unpacked, git_odb_backend* backend, void** out, std::size_t* size, git_object_t* type) {
  const Header header = read_header(unpacked);
  if (header.size > memory_allowed()) throw failure("it would take more than half of this host's memory");
  auto* bytes = static_cast<char*>(git_odb_backend_data_alloc(backend, header.size + 1));
  if (!bytes) throw std::bad_alloc();
  try {
    std::copy(header.rest.begin(), header.rest.end(), bytes);
    const std::size_t left = header.size - header.rest.size();
    if (unpacked.read(bytes + header.rest.size(), left) < left) throw failure("it is shorter than its header says");
    unpacked.expect_end();
  } catch (...) {
    git_odb_backend_data_free(backend, bytes);
    throw;
  }
  bytes[header.size] = '\0';
  *out = bytes;
  *size = header.size;
  *type = header.type;
}

/// Runs `action` on the file of an object: libgit2 is C, so what it throws becomes a code and a message.
template <typename Action>
int with_object(git_odb_backend* backend, const git_oid* id, Action&& action) noexcept {
  try {
    const fs::path path = path_of(backend, id);
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file && (errno == ENOENT || errno == ENOTDIR)) return GIT_ENOTFOUND;
    const std::string what = "the loose object " + quote(path.native()) + " is damaged";
    attempt(what, [&] {
      if (!file) throw system_error("open it");
      struct stat info {};
      if (::fstat(file.get(), &info) < 0 || !S_ISREG(info.st_mode)) throw failure("it is no regular file");
      Unpacked unpacked(std::move(file));
      action(unpacked);
    });
    return 0;
  } catch (const Error& error) {
    git_error_set_str(GIT_ERROR_ODB, error.message().c_str());
  } catch (const std::exception&) {
    git_error_set_oom();
  }
  return GIT_ERROR;
}

int read(void** out, std::size_t* size, git_object_t* type, git_odb_backend* backend, const git_oid* id) {
  return with_object(backend, id, [&](Unpacked& unpacked) { read_whole(unpacked, backend, out, size, type); });
}

int read_header(std::size_t* size, git_object_t* type, git_odb_backend* backend, const git_oid* id) {
  return with_object(backend, id, [&](Unpacked& unpacked) {
    const Header header = read_header(unpacked);
    *size = header.size;
    *type = header.type;
  });
}

int exists(git_odb_backend* backend, const git_oid* id) {
  struct stat info {};
  return ::stat(path_of(backend, id).c_str(), &info) == 0 ? 1 : 0;
}

/// The only object whose id begins with the first `digits` of `beginning`.
int exists_prefix(git_oid* found, git_odb_backend* backend, const git_oid* beginning, std::size_t digits) {
  const std::string hex = hex_of(beginning).substr(0, digits);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir((folder_of(backend) / hex.substr(0, 2)).c_str()), closedir);
  if (!folder || hex.size() < 2) return GIT_ENOTFOUND;
  std::string only;
  while (const dirent* item = readdir(folder.get())) {
    const std::string id = hex.substr(0, 2) + item->d_name;
    if (!id.starts_with(hex) || id.size() != GIT_OID_HEXSZ || git_oid_fromstr(found, id.c_str()) < 0) continue;
    if (!only.empty()) return GIT_EAMBIGUOUS;
    only = id;
  }
  return only.empty() ? GIT_ENOTFOUND : git_oid_fromstr(found, only.c_str());
}

int read_prefix(git_oid* found, void** out, std::size_t* size, git_object_t* type, git_odb_backend* backend,
                const git_oid* beginning, std::size_t digits) {
  const int code = exists_prefix(found, backend, beginning, digits);
  return code < 0 ? code : read(out, size, type, backend, found);
}

void release(git_odb_backend* backend) { delete reinterpret_cast<Backend*>(backend); }

}  // namespace

git_odb_backend* make_loose_backend(const fs::path& folder) {
  auto* backend = new Backend{.folder = folder};
  git_odb_init_backend(&backend->calls, GIT_ODB_BACKEND_VERSION);
  backend->calls.read = read;
  backend->calls.read_header = read_header;
  backend->calls.read_prefix = read_prefix;
  backend->calls.exists = exists;
  backend->calls.exists_prefix = exists_prefix;
  backend->calls.free = release;
  return &backend->calls;
}

}  // namespace dsec::layers
