#include "layers/erofs_read/erofs_image.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "layers/erofs_read/superblock.h"

namespace dsec::layers {
namespace {

enum Layout : std::uint8_t { kFlat = 0, kCompressedFull = 1, kFlatInline = 2, kCompressedCompact = 3, kChunks = 4 };

constexpr std::uint32_t kChunkBits = 0x1F, kChunkIndexes = 0x20;  // of the chunk format
constexpr std::uint32_t kHole = 0xFFFFFFFF;
constexpr std::size_t kDirent = 12, kNameLimit = 255, kTargetLimit = 4095;  // bytes; the last as PATH_MAX has it

// Index of fs/erofs/xattr.h to name prefix; 5 was Lustre's and is not written by anyone.
constexpr std::array<std::string_view, 7> kPrefixes = {
    "", "user.", "system.posix_acl_access", "system.posix_acl_default", "trusted.", "", "security."};
constexpr std::uint8_t kLongPrefix = 0x80;

// Where a run of a file's bytes lies.
struct Place {
  enum class On { Meta, Data, Nowhere } on;
  std::uint64_t address;  ///< bytes
  std::uint64_t length;   ///< bytes from there that belong together
};

}  // namespace

struct ErofsImage::State {
  MetaReader meta;
  UniqueFd data;
  std::uint64_t data_bytes = 0;
  ErofsSuperblock super;
  std::vector<std::string> prefixes;  ///< long ones

  State(UniqueFd meta_fd, UniqueFd data_fd, std::string name)
      : meta(std::move(meta_fd), std::move(name)), data(std::move(data_fd)), super(read_superblock(meta)) {
    if (!data) return;
    struct stat facts {};
    if (::fstat(data.get(), &facts) != 0) throw system_error("examine the data of " + meta.name());
    data_bytes = static_cast<std::uint64_t>(facts.st_size);
  }

  ErofsInode inode(std::uint64_t nid);
  Place locate(const ErofsInode& inode, std::uint64_t offset);
  Place locate_chunk(const ErofsInode& inode, std::uint64_t offset);
  std::string directory_block(const ErofsInode& directory, std::uint64_t number);
  std::vector<ErofsDirEntry> parse_directory(const std::string& block);
  std::size_t read(const ErofsInode& file, std::uint64_t offset, char* buffer, std::size_t size);
  std::string read_whole(const ErofsInode& inode, std::size_t limit);
  void read_long_prefixes();
  std::pair<std::string, std::string> xattr_entry(std::uint64_t address, std::uint64_t limit, std::uint64_t* next);
};

ErofsInode ErofsImage::State::inode(std::uint64_t nid) {
  if (nid > meta.size() / 32) throw meta.damaged("it refers to inode " + std::to_string(nid) + ", beyond its end");
  const std::uint64_t address = super.inodes_address + nid * 32;
  std::string bytes = meta.read(address, 32);
  const std::uint16_t format = Fields(bytes).u16(0);
  if (format & ~0xF) throw meta.damaged("inode " + std::to_string(nid) + " has an unknown format");
  const bool extended = format & 1;
  if (extended) bytes = meta.read(address, 64);
  const Fields fields(bytes);
  ErofsInode inode;
  inode.nid = nid;
  inode.layout = static_cast<std::uint8_t>(format >> 1);
  if (inode.layout > kChunks) throw meta.damaged("inode " + std::to_string(nid) + " has an unknown layout");
  inode.mode = fields.u16(4);
  if (extended) {
    inode.size = fields.u64(8);
    inode.uid = fields.u32(24);
    inode.gid = fields.u32(28);
    inode.mtime = {static_cast<std::int64_t>(fields.u64(32)), fields.u32(40)};
    inode.nlink = fields.u32(44);
  } else {
    inode.nlink = fields.u16(6);
    inode.size = fields.u32(8);
    inode.mtime = {static_cast<std::int64_t>(super.epoch + fields.u32(12)), super.fixed_nanoseconds};
    inode.uid = fields.u16(24);
    inode.gid = fields.u16(26);
  }
  if (inode.mtime.nanoseconds > 999'999'999)
    throw meta.damaged("inode " + std::to_string(nid) + " has an invalid time");
  if (inode.size >> 62) throw meta.damaged("inode " + std::to_string(nid) + " has an impossible size");
  inode.content = fields.u32(16);
  if (const std::uint16_t count = fields.u16(2)) inode.xattr_size = 12 + (count - 1u) * 4;
  inode.xattr_address = address + bytes.size();
  inode.tail = inode.xattr_address + inode.xattr_size;
  switch (inode.mode & S_IFMT) {
    case S_IFCHR:
    case S_IFBLK:
      inode.major = (inode.content & 0xFFF00) >> 8;
      inode.minor = (inode.content & 0xFF) | (inode.content >> 12 & 0xFFF00);
      [[fallthrough]];
    case S_IFIFO:
    case S_IFSOCK:
      inode.size = 0;
      break;
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
      break;
    default:
      throw meta.damaged("inode " + std::to_string(nid) + " has no type");
  }
  return inode;
}

Place ErofsImage::State::locate_chunk(const ErofsInode& inode, std::uint64_t offset) {
  const std::uint32_t format = inode.content & 0xFFFF;
  if (format & ~(kChunkBits | kChunkIndexes))
    throw meta.damaged("inode " + std::to_string(inode.nid) + " has an unknown chunk format");
  const std::uint32_t bits = super.block_bits + (format & kChunkBits);
  if (bits > 62) throw meta.damaged("inode " + std::to_string(inode.nid) + " has impossibly large chunks");
  const std::uint64_t number = offset >> bits, inside = offset & ((1ull << bits) - 1);
  const std::uint64_t length = std::min<std::uint64_t>((1ull << bits) - inside, inode.size - offset);
  const std::size_t unit = format & kChunkIndexes ? 8 : 4;
  const std::uint64_t table = (inode.tail + unit - 1) / unit * unit;
  if (number > meta.size() / unit) throw meta.damaged("a file has more chunks than the image holds");
  char raw[8];
  meta.read_into(table + number * unit, raw, unit);
  const Fields fields(std::string_view(raw, unit));
  std::uint32_t block = fields.u32(0), device = 0;
  if (unit == 8) {
    block = fields.u32(4);
    device = fields.u16(2);
    if (fields.u16(0) != 0 && block != kHole) throw meta.damaged("a chunk has a 48-bit address");
  }
  if (block == kHole) return {Place::On::Nowhere, 0, length};
  if (device > 1 || (device == 1 && !super.device_blocks)) throw meta.damaged("a chunk lies on an unknown device");
  const std::uint64_t address = static_cast<std::uint64_t>(block) << super.block_bits;
  if (device == 1) return {Place::On::Data, address + inside, length};
  // Without a device number an address may still be one of the extra device, where the image gives it a range.
  if (super.device_blocks && super.device_address != 0 && block >= super.device_address &&
      block - super.device_address < *super.device_blocks)
    return {Place::On::Data, address - (super.device_address << super.block_bits) + inside, length};
  return {Place::On::Meta, address + inside, length};
}

Place ErofsImage::State::locate(const ErofsInode& inode, std::uint64_t offset) {
  switch (inode.layout) {
    case kFlat:
    case kFlatInline: {
      const std::uint64_t block = super.block_size();
      const std::uint64_t start = static_cast<std::uint64_t>(inode.content) << super.block_bits;
      if (inode.layout == kFlat) return {Place::On::Meta, start + offset, inode.size - offset};
      // All blocks but the last lie together, the rest behind the inode.
      const std::uint64_t outside = inode.size == 0 ? 0 : (inode.size - 1) / block * block;
      if (offset < outside) return {Place::On::Meta, start + offset, outside - offset};
      return {Place::On::Meta, inode.tail + (offset - outside), inode.size - offset};
    }
    case kChunks:
      return locate_chunk(inode, offset);
    default:
      throw failure("image " + meta.name() + " is compressed: its contents cannot be read without mounting it");
  }
}

std::size_t ErofsImage::State::read(const ErofsInode& file, std::uint64_t offset, char* buffer, std::size_t size) {
  if (offset >= file.size) return 0;
  size = static_cast<std::size_t>(std::min<std::uint64_t>(size, file.size - offset));
  for (std::size_t done = 0; done < size;) {
    const Place place = locate(file, offset + done);
    const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(place.length, size - done));
    if (place.on == Place::On::Meta) {
      meta.read_into(place.address, buffer + done, take);
    } else if (place.on == Place::On::Nowhere) {
      std::memset(buffer + done, 0, take);
    } else {
      if (!data) throw failure("the contents of image " + meta.name() + " are not here");
      if (place.address > data_bytes || take > data_bytes - place.address)
        throw meta.damaged("a file's contents lie beyond the end of its data");
      for (std::size_t got = 0; got < take;) {
        const ssize_t part =
            ::pread(data.get(), buffer + done + got, take - got, static_cast<off_t>(place.address + got));
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) throw system_error("read the data of " + meta.name());
        if (part == 0) throw meta.damaged("its data became shorter while it was read");
        got += static_cast<std::size_t>(part);
      }
    }
    done += take;
  }
  return size;
}

std::string ErofsImage::State::read_whole(const ErofsInode& inode, std::size_t limit) {
  if (inode.size > limit) throw meta.damaged("inode " + std::to_string(inode.nid) + " is too large for what it is");
  std::string bytes(static_cast<std::size_t>(inode.size), '\0');
  read(inode, 0, bytes.data(), bytes.size());
  return bytes;
}

std::string ErofsImage::State::directory_block(const ErofsInode& directory, std::uint64_t number) {
  if (directory.layout != kFlat && directory.layout != kFlatInline)
    throw failure("image " + meta.name() + " has compressed directories, which this dsec cannot read");
  if (directory.size > meta.size()) throw meta.damaged("a directory is larger than the image");
  std::string block(static_cast<std::size_t>(
                        std::min<std::uint64_t>(super.block_size(), directory.size - number * super.block_size())),
                    '\0');
  read(directory, number * super.block_size(), block.data(), block.size());
  return block;
}

std::vector<ErofsDirEntry> ErofsImage::State::parse_directory(const std::string& block) {
  std::vector<ErofsDirEntry> entries;
  if (block.size() < kDirent) throw meta.damaged("a directory block is too short");
  const Fields fields(block);
  const std::size_t first = fields.u16(8), count = first / kDirent;
  if (first % kDirent != 0 || count == 0 || first > block.size())
    throw meta.damaged("a directory block has no entries");
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t start = fields.u16(i * kDirent + 8);
    std::size_t end = i + 1 < count ? fields.u16((i + 1) * kDirent + 8) : block.size();
    if (start < first || end <= start || end > block.size()) throw meta.damaged("a directory entry has no name");
    std::string_view name(block.data() + start, end - start);
    if (i + 1 == count) name = name.substr(0, name.find('\0'));  // the last name may be followed by zeros
    if (name.empty() || name.size() > kNameLimit || name.find('/') != name.npos || name.find('\0') != name.npos)
      throw meta.damaged("a directory entry has the invalid name " + quote(name));
    entries.push_back({std::string(name), fields.u64(i * kDirent)});
  }
  return entries;
}

// One xattr at `address`, which may not reach beyond `limit`; *next is where another one would follow.
std::pair<std::string, std::string> ErofsImage::State::xattr_entry(std::uint64_t address, std::uint64_t limit,
                                                                   std::uint64_t* next) {
  char raw[4];
  if (address > limit || limit - address < 4) throw meta.damaged("an xattr reaches beyond its inode");
  meta.read_into(address, raw, sizeof raw);
  const Fields fields(std::string_view(raw, sizeof raw));
  const std::size_t name_length = fields.u8(0), value_length = fields.u16(2);
  const std::uint8_t index = fields.u8(1);
  const std::uint64_t end = address + 4 + name_length + value_length;
  if (end > limit) throw meta.damaged("an xattr reaches beyond its inode");
  *next = (end + 3) / 4 * 4;
  std::string name;
  if (index & kLongPrefix) {
    if (prefixes.empty()) read_long_prefixes();
    if (std::size_t{index} - kLongPrefix >= prefixes.size()) throw meta.damaged("an xattr has an unknown prefix");
    name = prefixes[index - kLongPrefix];
  } else {
    if (index == 0 || index == 5 || index >= kPrefixes.size()) throw meta.damaged("an xattr has an unknown prefix");
    name = kPrefixes[index];
  }
  name += meta.read(address + 4, name_length);
  return {std::move(name), meta.read(address + 4 + name_length, value_length)};
}

void ErofsImage::State::read_long_prefixes() {
  std::uint64_t at = super.prefix_address;
  std::optional<ErofsInode> packed;
  if (super.has_fragments() && super.packed_nid != 0 && !super.plain_prefixes()) packed = inode(super.packed_nid);
  const auto take = [&](std::size_t length) {
    std::string bytes(length, '\0');
    if (!packed)
      meta.read_into(at, bytes.data(), length);
    else if (read(*packed, at, bytes.data(), length) != length)
      throw meta.damaged("its xattr prefixes are cut off");
    at += length;
    return bytes;
  };
  for (std::uint32_t i = 0; i < super.prefix_count; ++i) {
    at = (at + 3) / 4 * 4;
    const std::size_t length = Fields(take(2)).u16(0);
    if (length < 1 || length > 1 + kNameLimit) throw meta.damaged("an xattr prefix has an impossible length");
    const std::string prefix = take(length);
    const auto base = static_cast<unsigned char>(prefix[0]);
    if (base >= kPrefixes.size()) throw meta.damaged("an xattr prefix has an unknown base");
    prefixes.push_back(std::string(kPrefixes[base]) + prefix.substr(1));
  }
  if (prefixes.empty()) throw meta.damaged("an xattr has an unknown prefix");
}

ErofsImage::ErofsImage(UniqueFd meta, UniqueFd data, std::string name)
    : state_(std::make_unique<State>(std::move(meta), std::move(data), std::move(name))) {}
ErofsImage::ErofsImage(ErofsImage&&) noexcept = default;
ErofsImage::~ErofsImage() = default;

std::uint64_t ErofsImage::meta_size() const noexcept { return state_->meta.size(); }

std::optional<std::uint64_t> ErofsImage::data_device_size() const noexcept {
  if (!state_->super.device_blocks) return std::nullopt;
  return *state_->super.device_blocks << state_->super.block_bits;
}

ErofsInode ErofsImage::root() {
  ErofsInode root = state_->inode(state_->super.root_nid);
  if (!root.is_directory()) throw state_->meta.damaged("its root is no directory");
  return root;
}

ErofsInode ErofsImage::inode(std::uint64_t nid) { return state_->inode(nid); }

std::vector<ErofsDirEntry> ErofsImage::list(const ErofsInode& directory) {
  std::vector<ErofsDirEntry> entries;
  for (std::uint64_t i = 0; i * state_->super.block_size() < directory.size; ++i)
    for (ErofsDirEntry& entry : state_->parse_directory(state_->directory_block(directory, i)))
      if (entry.name != "." && entry.name != "..") entries.push_back(std::move(entry));
  return entries;
}

std::optional<ErofsInode> ErofsImage::lookup(const ErofsInode& directory, std::string_view name) {
  // Entries are sorted across blocks: the block to search is the last one whose first name is not greater.
  std::uint64_t low = 0, high = (directory.size + state_->super.block_size() - 1) >> state_->super.block_bits;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    const auto entries = state_->parse_directory(state_->directory_block(directory, middle));
    if (name < entries.front().name) {
      high = middle;
    } else if (name > entries.back().name) {
      low = middle + 1;
    } else {
      const auto found =
          std::lower_bound(entries.begin(), entries.end(), name,
                           [](const ErofsDirEntry& entry, std::string_view n) { return entry.name < n; });
      if (found == entries.end() || found->name != name) return std::nullopt;
      return state_->inode(found->nid);
    }
  }
  return std::nullopt;
}

std::optional<ErofsInode> ErofsImage::find(std::string_view path) {
  ErofsInode at = root();
  while (!path.empty()) {
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    if (!at.is_directory()) return std::nullopt;
    std::optional<ErofsInode> next = lookup(at, name);
    if (!next) return std::nullopt;
    at = *next;
  }
  return at;
}

std::map<std::string, std::string> ErofsImage::xattrs(const ErofsInode& inode) {
  std::map<std::string, std::string> found;
  if (inode.xattr_size == 0) return found;
  const auto add = [&](std::pair<std::string, std::string> entry) {
    if (!found.insert(std::move(entry)).second) throw state_->meta.damaged("an inode has an xattr twice");
  };
  const std::uint64_t end = inode.xattr_address + inode.xattr_size;
  const std::string head = state_->meta.read(inode.xattr_address, 12);
  const std::size_t shared = Fields(head).u8(4);
  std::uint64_t at = inode.xattr_address + 12, unused = 0;
  if (shared * 4 > inode.xattr_size - 12) throw state_->meta.damaged("an inode has more shared xattrs than room");
  const std::string ids = state_->meta.read(at, shared * 4);
  for (std::size_t i = 0; i < shared; ++i)
    add(state_->xattr_entry(state_->super.xattrs_address + std::uint64_t{Fields(ids).u32(i * 4)} * 4,
                            state_->meta.size(), &unused));
  // Padding after the last one is shorter than an entry's head.
  for (at += shared * 4; at < end && end - at >= 4;) add(state_->xattr_entry(at, end, &at));
  return found;
}

std::string ErofsImage::link_target(const ErofsInode& symlink) { return state_->read_whole(symlink, kTargetLimit); }

std::size_t ErofsImage::read(const ErofsInode& file, std::uint64_t offset, char* buffer, std::size_t size) {
  return state_->read(file, offset, buffer, size);
}

void ErofsImage::extents(const ErofsInode& file, const std::function<void(const ErofsExtent&)>& visit) {
  ErofsExtent pending{0, 0, false};
  for (std::uint64_t offset = 0; offset < file.size;) {
    const Place place = state_->locate(file, offset);
    const bool hole = place.on == Place::On::Nowhere;
    const std::uint64_t limit = place.on == Place::On::Meta   ? state_->meta.size()
                                : place.on == Place::On::Data ? *data_device_size()
                                                              : 0;
    if (!hole && (place.address > limit || place.length > limit - place.address))
      throw state_->meta.damaged("a file's contents lie beyond the end of the image");
    if (pending.length > 0 && pending.hole != hole) {
      visit(pending);
      pending = {offset, 0, hole};
    }
    pending.hole = hole;
    pending.length += place.length;
    offset += place.length;
  }
  if (pending.length > 0) visit(pending);
}

void ErofsImage::stored(const ErofsInode& file, const std::function<void(const ErofsStored&)>& visit) {
  for (std::uint64_t offset = 0; offset < file.size;) {
    const Place place = state_->locate(file, offset);
    if (place.on == Place::On::Data) {
      const std::uint64_t limit = *data_device_size();
      if (place.address > limit || place.length > limit - place.address)
        throw state_->meta.damaged("a file's contents lie beyond the end of the image");
      visit({offset, place.length, place.address});
    }
    offset += place.length;
  }
}

}  // namespace dsec::layers
