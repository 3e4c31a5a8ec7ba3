#include "layers/overlaybd/writable_layer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/overlaybd/layer_file.h"
#include "layers/overlaybd/layer_input.h"
#include "layers/overlaybd/write_at.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr std::uint64_t kHeader = LayerHeader::kSize;
constexpr std::uint64_t kMostMappings = 128'000'000;    // lsmt/index.h, MAX_LSMT_INDEX_SIZE
constexpr std::size_t kMostSealedMappings = 1'000'000;  // lsmt/index.h, MAX_LSMT_RO_INDEX_SIZE
constexpr std::uint64_t kPiece = 1 << 20;               // bytes of the index read at a time
constexpr std::uint64_t kMostWritten = 4 << 20;         // bytes under one mapping; lsmt/file.cpp, MAX_IO_SIZE

void lock_for_writing(int fd, const std::string& name) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) return;
  if (errno == EAGAIN || errno == EACCES) throw failure(name + " is being written to by another process");
  throw system_error("lock " + name);
}

UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw system_error("duplicate a descriptor");
  return copy;
}

}  // namespace

void WritableLayer::create(int data, int index, LayerHeader facts) {
  facts.is_header = facts.is_data = true;
  facts.is_sealed = facts.is_sparse = false;
  facts.index_offset = facts.index_count = 0;
  write_at(data, 0, facts.bytes());
  facts.is_data = false;
  facts.index_offset = kHeader;
  write_at(index, 0, facts.bytes());
}

WritableLayer::WritableLayer(const std::filesystem::path& data, const std::filesystem::path& index, Access access)
    : name_(quote(data.native())), data_(open_input(data, access == Access::Write ? O_RDWR : O_RDONLY)) {
  if (access == Access::Write) lock_for_writing(data_.get(), name_);
  const auto bytes = file_bytes(duplicate(data_.get()), name_);
  const LayerHeader header = read_layer_header(*bytes);
  if (!header.is_data || header.is_sealed) throw failure(name_ + " is no data file of a writable layer");
  if (header.is_sparse && access == Access::Write)
    throw failure(name_ + " is a sparse layer, which dsec does not write")
        .hint("make a sealed layer of it with dsec obd commit, and a new one on top of that");
  data_end_ = (bytes->size() + kSector - 1) / kSector * kSector;
  facts_ = header;
  if (header.is_sparse) {
    find_runs();
  } else if (index.empty()) {
    throw failure(name_ + " is of no use without its index file").hint("give the index file after it");
  } else {
    open_index(index, access);
    read_index();
    if (access == Access::Write && passed_over_ > 0 && ::ftruncate(index_.get(), static_cast<off_t>(index_end_)) != 0)
      throw system_error("truncate " + quote(index.native()));
  }
  check_device_size(*bytes, facts_.size);
}

void WritableLayer::open_index(const std::filesystem::path& path, Access access) {
  index_ = open_input(path, access == Access::Write ? O_RDWR : O_RDONLY);
  const auto bytes = file_bytes(duplicate(index_.get()), quote(path.native()));
  const LayerHeader header = read_layer_header(*bytes);
  if (header.is_data || header.is_sealed) throw failure(bytes->name() + " is no index file of a writable layer");
  if (header.uuid != facts_.uuid) throw failure(bytes->name() + " is the index of another layer than " + name_);
  if (header.index_offset != kHeader)
    throw bytes->damaged("its mappings begin at byte " + std::to_string(header.index_offset));
  facts_ = header;
}

void WritableLayer::read_index() {
  const auto bytes = file_bytes(duplicate(index_.get()), "the index of " + name_);
  const std::uint64_t count = (bytes->size() - kHeader) / Mapping::kSize;
  if (count > kMostMappings) throw bytes->damaged("it has " + std::to_string(count) + " mappings");
  // A machine that crashed may have kept mappings, or the room for them, without the bytes that they stand for. Then so
  // it is with all that follow.
  std::optional<std::uint64_t> broken;
  for (std::uint64_t done = 0; done < count * Mapping::kSize;) {
    const std::string piece =
        bytes->read(kHeader + done, static_cast<std::size_t>(std::min(kPiece, count * Mapping::kSize - done)));
    for (std::size_t at = 0; at < piece.size(); at += Mapping::kSize) {
      const Mapping mapping = Mapping::parse(piece.data() + at);
      if (mapping.is_filler()) continue;
      const bool good = mapping.length() > 0 && mapping.end() <= Mapping::kMaxOffset &&
                        lies_within(mapping, kHeader / kSector, data_end_ / kSector);
      if (good && broken)
        throw bytes->damaged("mapping " + std::to_string(*broken / Mapping::kSize) +
                             " points to what the data file does not have");
      if (good) extents_.insert(mapping.in_layer(0));
      if (!good && !broken) broken = done + at;
    }
    done += piece.size();
  }
  index_end_ = kHeader + broken.value_or(count * Mapping::kSize);
  passed_over_ = bytes->size() - index_end_;
}

void WritableLayer::find_runs() {
  for (off_t at = static_cast<off_t>(kHeader);;) {
    const off_t begin = ::lseek(data_.get(), at, SEEK_DATA);
    if (begin < 0 && errno == ENXIO) return;
    const off_t end = begin < 0 ? -1 : ::lseek(data_.get(), begin, SEEK_HOLE);
    if (end < 0) throw system_error("find the holes of " + name_);
    std::uint64_t sector = static_cast<std::uint64_t>(begin) / kSector;
    const std::uint64_t behind = static_cast<std::uint64_t>(end) / kSector;
    while (sector < behind) {
      const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(Mapping::kMaxLength, behind - sector));
      extents_.insert({sector - kHeader / kSector, length, sector});
      sector += length;
    }
    at = end;
  }
}

void WritableLayer::read(std::uint64_t offset, char* buffer, std::size_t size) const {
  while (size > 0) {
    const ssize_t got = ::pread(data_.get(), buffer, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read " + name_);
    if (got == 0) throw failure(name_ + " is damaged: it ends before the bytes that its index tells of");
    buffer += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
}

void WritableLayer::check_range(std::uint64_t offset, std::uint64_t size) const {
  if (offset % kSector != 0 || size % kSector != 0) throw failure("only whole sectors of " + name_ + " can be written");
  if (offset > facts_.size || size > facts_.size - offset)
    throw failure(std::to_string(size) + " bytes at " + std::to_string(offset) + " are beyond the end of " + name_);
}

void WritableLayer::append(const Mapping& mapping) {
  std::string bytes;
  mapping.append_to(bytes);
  write_at(index_.get(), index_end_, bytes);
  index_end_ += bytes.size();
  extents_.insert(mapping);
}

void WritableLayer::write(std::uint64_t offset, std::string_view bytes) {
  check_range(offset, bytes.size());
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kMostWritten);
    write_at(data_.get(), data_end_, piece);
    append({offset / kSector, static_cast<std::uint32_t>(piece.size() / kSector), data_end_ / kSector});
    data_end_ += piece.size();
    offset += piece.size();
    bytes.remove_prefix(piece.size());
  }
}

void WritableLayer::discard(std::uint64_t offset, std::uint64_t size) {
  check_range(offset, size);
  for (std::uint64_t sector = offset / kSector, rest = size / kSector; rest > 0;) {
    const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(Mapping::kMaxLength, rest));
    append({sector, length, data_end_ / kSector, true});
    sector += length;
    rest -= length;
  }
}

void WritableLayer::write_over(std::uint64_t offset, std::string_view bytes) {
  check_range(offset, bytes.size());
  const std::uint64_t from = offset / kSector, to = from + bytes.size() / kSector;
  std::vector<Mapping> there;
  extents_.visit(from, to, [&](const Mapping& mapping) {
    if (!mapping.zero()) there.push_back(mapping.part(from, to));
  });
  const auto part = [&](std::uint64_t begin, std::uint64_t end) {
    return bytes.substr((begin - from) * kSector, (end - begin) * kSector);
  };
  // Whoever writes in order shall not have a run of sectors for each time.
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    write(begin * kSector, part(begin, end));
    extents_.join(begin);
  };
  std::uint64_t done = from;
  for (const Mapping& mapping : there) {
    if (mapping.offset() > done) add(done, mapping.offset());
    write_at(data_.get(), mapping.place() * kSector, part(mapping.offset(), mapping.end()));
    done = mapping.end();
  }
  if (done < to) add(done, to);
}

void WritableLayer::clear(std::uint64_t place, std::uint64_t size) {
  if (::fallocate(data_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(place),
                  static_cast<off_t>(size)) == 0)
    return;
  if (errno != EOPNOTSUPP) throw system_error("clear a part of " + name_);
  const std::string zeros(static_cast<std::size_t>(std::min(size, kPiece)), '\0');
  for (std::uint64_t done = 0; done < size; done += zeros.size())
    write_at(data_.get(), place + done, std::string_view(zeros).substr(0, size - done));
}

void WritableLayer::seal() {
  std::vector<Mapping> mappings;
  for (const Mapping& mapping : extents_.mappings())
    if (mappings.empty() || !mappings.back().join(mapping)) mappings.push_back(mapping);
  if (mappings.size() > kMostSealedMappings)
    throw failure(name_ + " has " + std::to_string(mappings.size()) + " mappings, and a sealed layer at most " +
                  std::to_string(kMostSealedMappings));
  std::string end;
  for (const Mapping& mapping : mappings) mapping.append_to(end);
  end.resize((end.size() + kSector - 1) / kSector * kSector);
  LayerHeader trailer = facts_;
  trailer.is_header = false;
  trailer.is_data = trailer.is_sealed = true;
  trailer.index_offset = data_end_;
  trailer.index_count = mappings.size();
  end += trailer.bytes();
  // A file that is longer would have its trailer elsewhere: what an attempt left that was broken off.
  if (::ftruncate(data_.get(), static_cast<off_t>(data_end_)) != 0) throw system_error("seal " + name_);
  write_at(data_.get(), data_end_, end);
}

void WritableLayer::flush() {
  if (::fdatasync(data_.get()) != 0 || ::fdatasync(index_.get()) != 0) throw system_error("flush " + name_);
}

}  // namespace dsec::layers::overlaybd
