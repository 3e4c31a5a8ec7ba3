#include "layers/erofs/erofs_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "layers/archive/refusal.h"
#include "layers/archive/xattrs.h"
#include "layers/erofs/tar_writer.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kBuffer = 256 << 10;
constexpr std::uint64_t kBlock = 4096;
// The largest pipe that an unprivileged process may ask for by default (fs.pipe-max-size).
constexpr int kPipe = 1 << 20;
// Files up to 1 MiB have one index each; only whole chunks of zeros become holes.
constexpr const char* kChunkSize = "--chunksize=1048576";

/// write(2) that reports a reader's end by EPIPE alone, without a signal to the whole process.
ssize_t write_quietly(int fd, std::string_view bytes) {
  sigset_t broken_pipe, old, pending;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  sigpending(&pending);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, &old);
  const ssize_t put = ::write(fd, bytes.data(), bytes.size());
  const int error = errno;
  if (put < 0 && error == EPIPE && !sigismember(&pending, SIGPIPE)) {
    const timespec now{};
    sigtimedwait(&broken_pipe, nullptr, &now);
  }
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  errno = error;
  return put;
}

std::uint64_t size_of(int fd) {
  struct stat status;
  if (::fstat(fd, &status) != 0) throw system_error("stat an image");
  return static_cast<std::uint64_t>(status.st_size);
}

/// At least one block: a device of no size cannot be attached to a loop device.
void pad_to_block(int fd) {
  const std::uint64_t size = size_of(fd), wanted = std::max(kBlock, (size + kBlock - 1) / kBlock * kBlock);
  if (wanted != size && ::ftruncate(fd, static_cast<off_t>(wanted)) != 0) throw system_error("extend an image");
}

}  // namespace

std::string uuid_of(const Digest& digest) {
  std::string hex = digest.hex().substr(0, 32);
  hex[12] = '8';
  hex[16] = "89ab"[(hex[16] <= '9' ? hex[16] - '0' : hex[16] - 'a' + 10) & 3];
  for (const std::size_t dash : {20, 16, 12, 8}) hex.insert(dash, "-");
  return hex;
}

ErofsWriter::ErofsWriter(const Mkfs& mkfs, engine::BlobSession& session, ErofsOptions options)
    : session_(session), options_(std::move(options)), meta_(session.new_file()) {
  if (options_.compression == "none") data_.emplace(session.new_file());
  attempt("cannot start " + quote(mkfs.program.native()), [&] { start(mkfs); });
}

ErofsWriter::~ErofsWriter() = default;

void ErofsWriter::start(const Mkfs& mkfs) {
  // -T with --mkfs-time fixes the time of building and leaves those of the files; inline data would keep contents in
  // meta.
  std::vector<std::string> argv = {mkfs.program.native(), "--quiet",        "--tar=f", "-b4096", "-T0", "--mkfs-time",
                                   "-U" + options_.uuid,  "-Enoinline_data"};
  if (data_) {
    argv.push_back(kChunkSize);
    argv.push_back("--blobdev=" + data_->path().native());
  } else {
    // 64 KiB clusters: what small ones save in reading they lose several times over in size.
    argv.push_back(options_.compression == "lz4" ? "-zlz4" : "-zzstd,level=3");
    argv.push_back("-C65536");
  }
  argv.push_back(meta_.path().native());

  messages_ = UniqueFd(::memfd_create("mkfs.erofs", MFD_CLOEXEC));
  if (!messages_) throw system_error("memfd_create");
  auto [read_end, write_end] = make_pipe();
  ::fcntl(write_end.get(), F_SETPIPE_SZ, kPipe);
  // A SOURCE_DATE_EPOCH or a locale of the caller must not reach the image; scratch files stay on the store's disk.
  child_.emplace(
      ChildProcess::spawn({.argv = argv,
                           .environment = {{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
                                            "TMPDIR=" + meta_.path().parent_path().native()}},
                           .descriptors = {{read_end.get(), 0}, {messages_.get(), 1}, {messages_.get(), 2}}}));
  pipe_ = std::move(write_end);
  buffer_.reserve(kBuffer);
}

void ErofsWriter::mkfs_failed(const ExitStatus& status) {
  std::string said;
  const std::uint64_t size = size_of(messages_.get());
  said.resize(std::min<std::uint64_t>(size, 2000));
  if (::pread(messages_.get(), said.data(), said.size(), static_cast<off_t>(size - said.size())) < 0) said.clear();
  // Its messages are lines "<E> erofs: text"; the last ones tell most.
  while (said.ends_with('\n')) said.pop_back();
  if (const std::size_t line = said.rfind('\n'); line != std::string::npos) said = said.substr(line + 1);
  throw failure("mkfs.erofs ended with " + status.str() + (said.empty() ? "" : ": " + quote(said)));
}

void ErofsWriter::flush() {
  for (std::string_view rest = buffer_; !rest.empty();) {
    const ssize_t put = write_quietly(pipe_.get(), rest);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EPIPE) mkfs_failed(child_->wait());
    if (put < 0) throw system_error("write to mkfs.erofs");
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
  buffer_.clear();
}

void ErofsWriter::put(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kBuffer) flush();
  if (bytes.size() < kBuffer) {
    buffer_ += bytes;
    return;
  }
  while (!bytes.empty()) {
    const ssize_t done = write_quietly(pipe_.get(), bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EPIPE) mkfs_failed(child_->wait());
    if (done < 0) throw system_error("write to mkfs.erofs");
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
}

void ErofsWriter::make_parents(std::string_view path) {
  if (path.empty()) return;
  const std::size_t slash = path.rfind('/');
  const std::string_view parent = slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  if (directories_.contains(parent)) return;
  make_parents(parent);
  Entry directory;
  directory.path = parent;
  directory.type = EntryType::Directory;
  directory.mode = 0755;
  put(tar_header_blocks(directory));
  directories_.emplace(parent);
  implicit_.emplace(parent);
}

void ErofsWriter::end_content() {
  if (content_left_ > 0) throw Error(ErrorKind::Internal, "a source gave less content than it announced");
  put(std::string(std::exchange(padding_, 0), '\0'));
}

void ErofsWriter::entry(const Entry& entry) {
  end_content();
  if (const auto problem = xattrs_problem(entry.xattrs))
    throw refusal(Refusal::NotRepresentable, "entry " + quote(entry.path) + " " + *problem);
  make_parents(entry.path);
  if (entry.type == EntryType::Directory) {
    directories_.insert(entry.path);
    implicit_.erase(entry.path);
  }
  put(tar_header_blocks(entry));
  if (entry.type != EntryType::File) return;
  content_left_ = entry.size;
  padding_ = (512 - entry.size % 512) % 512;
}

void ErofsWriter::data(std::string_view bytes) {
  if (bytes.size() > content_left_) throw Error(ErrorKind::Internal, "a source gave more content than it announced");
  content_left_ -= bytes.size();
  put(bytes);
}

LayerImage ErofsWriter::finish() {
  end_content();
  make_parents("x");  // the root, when nothing mentioned it
  put(tar_end());
  flush();
  pipe_.reset();
  // From here on mkfs.erofs writes the data, file by file.
  if (data_) data_hash_ = std::make_unique<DataHash>(data_->fd());
  if (const ExitStatus status = child_->wait(); !status.ok()) {
    data_hash_.reset();
    mkfs_failed(status);
  }
  pad_to_block(meta_.fd());
  LayerImage image;
  image.compression = options_.compression;
  image.uuid = options_.uuid;
  if (data_) pad_to_block(data_->fd());
  image.blobs.push_back(session_.adopt(std::move(meta_), BlobRole::Meta));
  if (data_) {
    const DataHash::Result hashed = data_hash_->finish();
    image.blobs.push_back(session_.adopt(std::move(*data_), BlobRole::Data, hashed.whole));
    TempFile chunks = session_.new_file();
    write_all(chunks.fd(), hashed.chunks);
    image.blobs.push_back(session_.adopt(std::move(chunks), BlobRole::Chunks));
  }
  return image;
}

}  // namespace dsec::layers
