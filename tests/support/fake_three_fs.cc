#include "tests/support/fake_three_fs.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace dsec::test {
namespace {

constexpr std::uint64_t kNegativeSeconds = 5;
constexpr std::uint32_t kLargestWrite = 1 << 20;
constexpr unsigned kMagicRequest = 0x80046802;
constexpr std::uint32_t kMagic = 0x8F3F5FFF;
constexpr unsigned kVersionRequest = 0x80046803;

template <typename T>
std::string_view bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

struct FakeThreeFs::Request {
  fuse_in_header header{};
  std::string_view body;

  template <typename T>
  T argument() const {
    T value{};
    std::memcpy(&value, body.data(), std::min(sizeof value, body.size()));
    return value;
  }
  /// The n-th text that ends with a NUL after `skip` bytes of arguments.
  std::string_view text(std::size_t skip, int n = 0) const {
    std::string_view rest = body.substr(skip);
    for (; n > 0; --n) rest.remove_prefix(rest.find('\0') + 1);
    return rest.substr(0, rest.find('\0'));
  }
};

struct FakeThreeFs::Reply {
  int error = 0;
  std::string payload;
  bool silent = false;  ///< the kernel expects no answer
};

FakeThreeFs::FakeThreeFs(const std::filesystem::path& mount_point)
    : mount_point_(mount_point),
      device_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)),
      rings_([this](std::uint64_t inode, std::uint64_t offset, char* to, std::size_t length, bool no_holes) {
        const std::lock_guard lock(mutex_);
        return read_node(inode, offset, to, length, no_holes);
      }) {
  if (!device_) throw system_error("open /dev/fuse");
  nodes_[1].mode = S_IFDIR | 0755;
  iovs_ = make(make(1, "3fs-virt", S_IFDIR | 0555), "iovs", S_IFDIR | 0777);
  nodes_[make(iovs_, "submit-ios", S_IFLNK | 0666)].content = rings_.wake_target();
  const std::string options = "fd=" + std::to_string(device_.get()) +
                              ",rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=1048576";
  if (::mount("hf3fs.test", mount_point_.c_str(), "fuse.hf3fs", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
    throw system_error("mount the fake 3FS");
  server_ = std::thread([this] { serve(); });
}

FakeThreeFs::~FakeThreeFs() {
  // Ends the server's read with ENODEV.
  ::umount2(mount_point_.c_str(), MNT_FORCE);
  ::umount2(mount_point_.c_str(), MNT_DETACH);
  server_.join();
}

std::vector<std::string> FakeThreeFs::replaced() const {
  const std::lock_guard lock(mutex_);
  return replaced_;
}

std::vector<std::string> FakeThreeFs::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

std::vector<std::string> FakeThreeFs::strayed() const {
  const std::lock_guard lock(mutex_);
  return strayed_;
}

std::uint64_t FakeThreeFs::find(const std::filesystem::path& relative) const {
  std::uint64_t id = 1;
  for (const auto& part : relative) id = nodes_.at(id).children.at(part.native());
  return id;
}

void FakeThreeFs::remove_from_elsewhere(const std::filesystem::path& relative) {
  const std::lock_guard lock(mutex_);
  remove(find(relative.parent_path()), relative.filename().native());
}

void FakeThreeFs::lose(const std::filesystem::path& relative, std::uint64_t offset, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  Node& node = nodes_.at(find(relative));
  node.lost_from = offset;
  node.lost_to = offset + size;
}

std::int64_t FakeThreeFs::read_node(std::uint64_t id, std::uint64_t offset, char* to, std::size_t length,
                                    bool no_holes) const {
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || (found->second.mode & S_IFMT) != S_IFREG) return -ENOENT;
  const Node& node = found->second;
  // What is lost at the end is as if it had never been.
  const std::uint64_t size = node.lost_to >= node.content.size() && node.lost_to > node.lost_from
                                 ? std::min<std::uint64_t>(node.lost_from, node.content.size())
                                 : node.content.size();
  if (offset >= size) return 0;
  length = static_cast<std::size_t>(std::min<std::uint64_t>(length, size - offset));
  std::memcpy(to, node.content.data() + offset, length);
  const std::uint64_t from = std::max(node.lost_from, offset), until = std::min(node.lost_to, offset + length);
  if (from < until) {
    if (no_holes) return -ENODATA;
    std::memset(to + (from - offset), 0, until - from);
  }
  return static_cast<std::int64_t>(length);
}

void FakeThreeFs::put_from_elsewhere(const std::filesystem::path& relative, const std::string& content) {
  const std::lock_guard lock(mutex_);
  std::uint64_t parent = 1;
  for (const auto& part : relative.parent_path()) {
    auto& children = nodes_[parent].children;
    const auto found = children.find(part.native());
    parent = found != children.end() ? found->second : make(parent, part.native(), S_IFDIR | 0755);
  }
  const std::string name = relative.filename().native();
  remove(parent, name);
  nodes_[make(parent, name, S_IFREG | 0444)].content = content;
}

void FakeThreeFs::serve() {
  std::vector<char> buffer(kLargestWrite + 4096);
  for (;;) {
    const ssize_t got = ::read(device_.get(), buffer.data(), buffer.size());
    if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
    if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
    Request request;
    std::memcpy(&request.header, buffer.data(), sizeof request.header);
    request.body = {buffer.data() + sizeof request.header, static_cast<std::size_t>(got) - sizeof request.header};
    Reply reply;
    {
      const std::lock_guard lock(mutex_);
      reply = answer(request);
    }
    if (reply.silent) continue;
    fuse_out_header header{static_cast<std::uint32_t>(sizeof header + reply.payload.size()), -reply.error,
                           request.header.unique};
    iovec parts[2] = {{&header, sizeof header}, {reply.payload.data(), reply.payload.size()}};
    static_cast<void>(::writev(device_.get(), parts, 2));
  }
}

std::uint64_t FakeThreeFs::make(std::uint64_t parent, std::string_view name, std::uint32_t mode) {
  const std::uint64_t id = next_++;
  nodes_[id].mode = mode;
  nodes_[id].made_in = parent;
  nodes_[parent].children.insert_or_assign(std::string(name), id);
  return id;
}

int FakeThreeFs::remove(std::uint64_t parent, std::string_view name) {
  auto& children = nodes_[parent].children;
  const auto found = children.find(std::string(name));
  if (found == children.end()) return ENOENT;
  Node& node = nodes_[found->second];
  if (!node.children.empty()) return ENOTEMPTY;
  if (node.links > 0) --node.links;  // the node stays: somebody may have it open
  if (parent == iovs_) rings_.remove(name);
  children.erase(found);
  return 0;
}

namespace {

fuse_attr attributes(std::uint64_t id, std::uint32_t mode, std::uint32_t links, std::uint64_t size) {
  fuse_attr attr{};
  attr.ino = id;
  attr.mode = mode;
  attr.nlink = links;
  attr.size = size;
  attr.blksize = 2 << 20;
  attr.mtime = 1'000'000'000;
  return attr;
}

}  // namespace

FakeThreeFs::Reply FakeThreeFs::entry(std::uint64_t id) const {
  const Node& node = nodes_.at(id);
  fuse_entry_out out{};
  out.nodeid = id;
  out.entry_valid = out.attr_valid = entry_seconds;
  out.attr = attributes(id, node.mode, node.links, node.content.size());
  return {0, std::string(bytes(out))};
}

FakeThreeFs::Reply FakeThreeFs::list(const Request& request) const {
  const auto in = request.argument<fuse_read_in>();
  std::string out;
  std::uint64_t position = 0;
  for (const auto& [name, id] : nodes_.at(request.header.nodeid).children) {
    if (position++ < in.offset) continue;
    fuse_dirent dirent{};
    dirent.ino = id;
    dirent.off = position;
    dirent.namelen = static_cast<std::uint32_t>(name.size());
    dirent.type = nodes_.at(id).mode >> 12;
    std::string record(reinterpret_cast<const char*>(&dirent), FUSE_NAME_OFFSET);
    record += name;
    record.resize(FUSE_DIRENT_ALIGN(record.size()));
    if (out.size() + record.size() > in.size) break;
    out += record;
  }
  return {0, out};
}

FakeThreeFs::Reply FakeThreeFs::ioctl(const Request& request) const {
  const auto in = request.argument<fuse_ioctl_in>();
  const std::string out(bytes(fuse_ioctl_out{}));
  const std::uint32_t version = interface_version;
  if (in.cmd == kMagicRequest && answers_magic) return {0, out + std::string(bytes(kMagic))};
  if (in.cmd == kVersionRequest && version != 0) return {0, out + std::string(bytes(version))};
  return {ENOTTY, {}};
}

// In 3fs-virt/iovs a symlink registers memory; nowhere else does dsec make one.
FakeThreeFs::Reply FakeThreeFs::register_memory(const Request& request) {
  if (request.header.nodeid != iovs_) {
    refused_.push_back("a symlink");
    return {EPERM, {}};
  }
  const std::string_view name = request.text(0), target = request.text(0, 1);
  if (nodes_.at(iovs_).children.contains(std::string(name))) return {EEXIST, {}};
  if (const int error = rings_.add(name, target, static_cast<pid_t>(request.header.pid)); error != 0)
    return {error, {}};
  const std::uint64_t id = make(iovs_, name, S_IFLNK | 0400);
  nodes_[id].content = target;
  return entry(id);
}

FakeThreeFs::Reply FakeThreeFs::rename(const Request& request, std::string_view from, std::string_view to,
                                       std::uint64_t target) {
  auto& source = nodes_[request.header.nodeid].children;
  const auto found = source.find(std::string(from));
  if (found == source.end()) return {ENOENT, {}};
  const std::uint64_t id = found->second;
  if (nodes_[target].children.contains(std::string(to))) {
    replaced_.emplace_back(to);
    remove(target, to);
  }
  if (nodes_[id].made_in != target) strayed_.emplace_back(to);
  source.erase(std::string(from));
  nodes_[target].children[std::string(to)] = id;
  return {};
}

FakeThreeFs::Reply FakeThreeFs::answer(const Request& request) {
  const std::uint64_t id = request.header.nodeid;
  switch (request.header.opcode) {
    case FUSE_INIT: {
      const auto in = request.argument<fuse_init_in>();
      fuse_init_out out{};
      out.major = FUSE_KERNEL_VERSION;
      out.minor = std::min<std::uint32_t>(in.minor, FUSE_KERNEL_MINOR_VERSION);
      out.max_readahead = in.max_readahead;
      out.flags = in.flags & (FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_HAS_IOCTL_DIR);
      out.max_write = kLargestWrite;
      out.max_pages = kLargestWrite / 4096;
      out.max_background = 16;
      out.congestion_threshold = 12;
      return {0, std::string(bytes(out))};
    }
    case FUSE_LOOKUP: {
      const auto& children = nodes_.at(id).children;
      const auto found = children.find(std::string(request.text(0)));
      if (found != children.end()) return entry(found->second);
      fuse_entry_out missing{};
      missing.entry_valid = kNegativeSeconds;
      return {0, std::string(bytes(missing))};
    }
    case FUSE_GETATTR:
    case FUSE_SETATTR: {
      Node& node = nodes_.at(id);
      if (node.links == 0) return {ENOENT, {}};  // 3FS does not track who reads a file
      if (request.header.opcode == FUSE_SETATTR) {
        const auto in = request.argument<fuse_setattr_in>();
        if (in.valid & FATTR_MODE) node.mode = (node.mode & S_IFMT) | (in.mode & 07777);
        if (in.valid & FATTR_SIZE) node.content.resize(in.size);
      }
      fuse_attr_out out{};
      out.attr_valid = entry_seconds;
      out.attr = attributes(id, node.mode, node.links, node.content.size());
      return {0, std::string(bytes(out))};
    }
    case FUSE_MKDIR: {
      const std::string_view name = request.text(sizeof(fuse_mkdir_in));
      if (nodes_.at(id).children.contains(std::string(name))) return {EEXIST, {}};
      return entry(make(id, name, S_IFDIR | (request.argument<fuse_mkdir_in>().mode & 07777)));
    }
    case FUSE_CREATE: {
      const auto in = request.argument<fuse_create_in>();
      const std::string_view name = request.text(sizeof in);
      if (nodes_.at(id).children.contains(std::string(name))) return {EEXIST, {}};
      Reply reply = entry(make(id, name, S_IFREG | (in.mode & 07777)));
      reply.payload += bytes(fuse_open_out{});
      return reply;
    }
    case FUSE_LINK: {
      const auto in = request.argument<fuse_link_in>();
      const std::string_view name = request.text(sizeof in);
      if (nodes_.at(id).children.contains(std::string(name))) return {EEXIST, {}};
      nodes_[id].children.emplace(name, in.oldnodeid);
      if (nodes_[in.oldnodeid].made_in != id) strayed_.emplace_back(name);
      ++nodes_[in.oldnodeid].links;
      return entry(in.oldnodeid);
    }
    case FUSE_UNLINK:
    case FUSE_RMDIR:
      return {remove(id, request.text(0)), {}};
    case FUSE_RENAME:
      return rename(request, request.text(sizeof(fuse_rename_in)), request.text(sizeof(fuse_rename_in), 1),
                    request.argument<fuse_rename_in>().newdir);
    case FUSE_SYMLINK:
      return register_memory(request);
    case FUSE_READLINK:
      return {0, nodes_.at(id).content};
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
      fuse_open_out out{};
      if (request.header.opcode == FUSE_OPEN) ++opened;
      if (id == iovs_) iovs_open_[out.fh = next_++] = static_cast<pid_t>(request.header.pid);
      return {0, std::string(bytes(out))};
    }
    case FUSE_RELEASEDIR:
      if (const auto closed = iovs_open_.find(request.argument<fuse_release_in>().fh); closed != iovs_open_.end()) {
        for (const std::string& name : rings_.forget(closed->second)) nodes_[iovs_].children.erase(name);
        iovs_open_.erase(closed);
      }
      return {};
    case FUSE_READ: {
      const auto in = request.argument<fuse_read_in>();
      std::string content(in.size, '\0');
      const std::int64_t got = read_node(id, in.offset, content.data(), content.size(), false);
      if (got < 0) return {static_cast<int>(-got), {}};
      content.resize(static_cast<std::size_t>(got));
      bytes_read += content.size();
      return {0, std::move(content)};
    }
    case FUSE_WRITE: {
      const auto in = request.argument<fuse_write_in>();
      std::string& content = nodes_.at(id).content;
      content.resize(std::max<std::size_t>(content.size(), in.offset + in.size));
      std::memcpy(content.data() + in.offset, request.body.data() + sizeof in, in.size);
      if (corrupts_writes && in.size > 0) content[in.offset] = static_cast<char>(content[in.offset] ^ 1);
      fuse_write_out out{};
      out.size = in.size;
      return {0, std::string(bytes(out))};
    }
    case FUSE_FSYNC:
      return {fails_fsync ? EIO : 0, {}};
    case FUSE_FLUSH:
      return {fails_close ? EIO : 0, {}};
    case FUSE_RELEASE:
    case FUSE_ACCESS:
      return {};
    case FUSE_READDIR:
      return list(request);
    case FUSE_IOCTL:
      return ioctl(request);
    case FUSE_STATFS: {
      fuse_statfs_out out{};
      out.st.blocks = out.st.bfree = out.st.bavail = 1 << 20;
      out.st.bsize = out.st.frsize = 2 << 20;
      out.st.namelen = 255;
      return {0, std::string(bytes(out))};
    }
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return {0, {}, true};
    case FUSE_FSYNCDIR:
    case FUSE_GETXATTR:  // asked for by the kernel itself before a write
    case FUSE_LISTXATTR:
      return {ENOSYS, {}};
    default:
      refused_.push_back("operation " + std::to_string(request.header.opcode));
      return {ENOSYS, {}};
  }
}

}  // namespace dsec::test
