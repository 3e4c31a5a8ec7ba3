#include "layers/overlaybd/device_source.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/base/files.h"
#include "core/base/little_endian.h"
#include "core/base/units.h"
#include "layers/archive/input_budget.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_source.h"
#include "layers/archive/xattrs.h"
#include "layers/erofs_read/erofs_image.h"
#include "layers/erofs_read/superblock.h"
#include "layers/overlaybd/device_image.h"
#include "layers/overlaybd/write_at.h"

namespace dsec::layers {
namespace {

using overlaybd::Stack;

constexpr std::size_t kPiece = 1 << 20;  // bytes read at a time
constexpr std::size_t kBlock = 4096;     // bytes that become a hole together

void require_erofs(const Stack& device) {
  std::string start(2048, '\0');
  if (device.size() < start.size()) throw refusal(Refusal::NoImage, "the device is too small for a file system");
  device.read(0, start.data(), start.size());
  const Fields fields(start);
  if (fields.u32(1024) == 0xE0F5E1E2) return;
  if (fields.u16(1024 + 56) == 0xEF53)
    throw refusal(Refusal::NoImage, "the device holds an ext4 file system, and dsec reads EROFS")
        .hint("write it to a file with dsec obd cat, mount that, and import the folder with dir:");
  throw refusal(Refusal::NoImage, "the device holds no file system that dsec reads: EROFS");
}

template <typename Visit>
void each_data_run(const Stack& device, std::uint64_t offset, std::uint64_t size, Visit&& visit) {
  device.visit(offset, size, [&](const Stack::Run& run) {
    if (run.kind == Stack::Run::Kind::Data) visit(run);
  });
}

std::uint64_t data_bytes(const Stack& device, std::uint64_t offset, std::uint64_t size) {
  std::uint64_t bytes = 0;
  each_data_run(device, offset, size, [&](const Stack::Run& run) { bytes += run.size; });
  return bytes;
}

// Layers may say of any number of bytes that they are there.
void check_space(std::uint64_t needed, const std::filesystem::path& spool) {
  struct statvfs space;
  if (::statvfs(spool.c_str(), &space) != 0) throw system_error("statvfs " + quote(spool.native()));
  if (const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize; needed > free)
    throw failure("the device has " + format_size(needed) + ", and " + quote(spool.native()) + " has " +
                  format_size(free) + " left")
        .hint("dsec gc, or more space there");
}

bool is_zero(std::string_view bytes) { return bytes.find_first_not_of('\0') == std::string_view::npos; }

/// A part of the device in a file of its own, from its beginning on, with holes for what is zero.
UniqueFd spooled(const Stack& device, std::uint64_t offset, std::uint64_t size, const std::filesystem::path& spool) {
  UniqueFd file = unlinked_file(spool);
  std::string buffer;
  each_data_run(device, offset, size, [&](const Stack::Run& run) {
    for (std::uint64_t done = 0; done < run.size; done += buffer.size()) {
      buffer.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, run.size - done)));
      device.read(run.offset + done, buffer.data(), buffer.size());
      for (std::size_t at = 0; at < buffer.size(); at += kBlock)
        if (const auto block = std::string_view(buffer).substr(at, kBlock); !is_zero(block))
          overlaybd::write_at(file.get(), run.offset - offset + done + at, block);
    }
  });
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) throw system_error("set the size of a file");
  return file;
}

class DeviceSource final : public Source {
 public:
  DeviceSource(std::vector<std::filesystem::path> files, std::filesystem::path spool)
      : files_(std::move(files)), spool_(std::move(spool)) {}

  SourceFacts examine(const SourceOptions& options, Progress& progress) override {
    SourceFacts facts;
    facts.provenance.source = "overlaybd";
    // Opened before it is hashed: what is no file of layers at all would be read without an end.
    const Stack device = Stack::open(files_);
    std::string digests;
    for (const auto& file : files_) digests += (digests.empty() ? "" : " ") + digest_of_file(file.native()).str();
    facts.provenance.inputs["layers"] = digests;
    facts.identity = Digest::of(digests);
    const std::string step = "read the device";
    progress.begin(step);
    open_image(device, options.limits);
    measure(options.limits);
    if (dropped_ > 0)
      facts.warnings.push_back(std::to_string(dropped_) + " extended attributes that belong to a host are left out");
    progress.end(step, "");
    return facts;
  }

  void emit(std::size_t, TreeSink& sink) override {
    std::map<std::uint64_t, std::string> first_names;
    std::string piece(kPiece, '\0');
    walk(*image_, [&](const std::string& path, const ErofsInode& inode) {
      Entry entry = portable_entry(path, inode);
      if (!inode.is_directory() && inode.nlink > 1) {
        const auto [known, first] = first_names.try_emplace(inode.nid, path);
        if (!first) {
          entry.type = EntryType::HardLink;
          entry.target = known->second;
          entry.size = 0;
        }
      }
      sink.entry(entry);
      if (entry.type != EntryType::File) return;
      for (std::uint64_t at = 0; at < inode.size;) {
        const std::size_t got = image_->read(inode, at, piece.data(), piece.size());
        if (got == 0) throw refusal(Refusal::Truncated, "file " + quote(path) + " is shorter than its size says");
        sink.data(std::string_view(piece).substr(0, got));
        at += got;
      }
    });
  }

 private:
  std::uint64_t packed_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& file : files_) bytes += std::filesystem::file_size(file);
    return bytes;
  }

  void open_image(const Stack& device, const InputLimits& limits) {
    require_erofs(device);
    const std::string name = "of the device";
    const std::uint64_t unpacked = data_bytes(device, 0, device.size());
    InputBudget budget(limits);
    budget.begin_archive(packed_bytes());
    budget.unpacked(unpacked);
    check_space(unpacked, spool_);
    UniqueFd meta = spooled(device, 0, device.size(), spool_);
    UniqueFd again(::fcntl(meta.get(), F_DUPFD_CLOEXEC, 0));
    if (!again) throw system_error("duplicate a descriptor");
    MetaReader reader(std::move(again), name);
    const ErofsSuperblock super = read_superblock(reader);
    UniqueFd data;
    if (super.device_blocks) {
      const std::uint64_t begin = super.device_address * super.block_size();
      if (begin == 0) throw refusal(Refusal::NoImage, "the contents of the EROFS image are on another device");
      if (begin >= device.size() || *super.device_blocks > (device.size() - begin) / super.block_size())
        throw refusal(Refusal::Damaged, "the device is too short for the contents of its EROFS image");
      const std::uint64_t size = *super.device_blocks * super.block_size();
      check_space(data_bytes(device, begin, size), spool_);
      data = spooled(device, begin, size, spool_);
    }
    image_.emplace(std::move(meta), std::move(data), name);
  }

  // Limits hold before anything is written.
  void measure(const InputLimits& limits) {
    InputBudget budget(limits);
    std::uint64_t bytes = 0;
    budget.begin_archive(packed_bytes());
    walk(*image_, [&](const std::string& path, const ErofsInode& inode) {
      if (!path.empty()) (void)normal_path(path, limits);
      if (inode.compressed())
        throw refusal(Refusal::NotRepresentable, "file " + quote(path) + " is compressed in the EROFS image");
      if (inode.is_whiteout())
        throw refusal(Refusal::NotRepresentable, "device " + quote(path) + " with the numbers 0:0 would be a deletion");
      const std::size_t all = image_->xattrs(inode).size();
      const Entry entry = portable_entry(path, inode);
      dropped_ += all - entry.xattrs.size();
      std::uint64_t metadata = path.size() + entry.target.size();
      for (const auto& [key, value] : entry.xattrs) metadata += key.size() + value.size();
      budget.entry(metadata, 0);
      budget.unpacked(bytes += entry.size);
    });
  }

  Entry portable_entry(const std::string& path, const ErofsInode& inode) {
    Entry entry = to_entry(*image_, path, inode);
    std::erase_if(entry.xattrs, [&](const auto& item) {
      return fate_of_xattr(item.first) == XattrFate::Drop || !xattr_suits(entry.type, item.first);
    });
    return entry;
  }

  std::vector<std::filesystem::path> files_;
  std::filesystem::path spool_;
  std::optional<ErofsImage> image_;
  std::size_t dropped_ = 0;
};

}  // namespace

std::unique_ptr<Source> open_overlaybd_source(std::vector<std::filesystem::path> files, std::filesystem::path spool) {
  return std::make_unique<DeviceSource>(std::move(files), std::move(spool));
}

}  // namespace dsec::layers
