#include "layers/disk/disk_image.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kHeaderSize = 104;  // of version 3, whose first 72 bytes are version 2
constexpr std::uint32_t kQcow2Magic = 0x514649fb;
constexpr std::uint64_t kSector = 512, kLargest = 64ull << 40;
// Features that an image may need: 0x1 it was not closed, 0x2 it is damaged, 0x4 its data is in another file, 0x8 how
// it is compressed, 0x10 its tables have finer entries. QEMU knows these.
constexpr std::uint64_t kNotClosed = 1, kDamaged = 2, kDataElsewhere = 4, kKnownFeatures = 0x1f;

std::uint64_t big_endian(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < size; ++i) number = number << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return number;
}

// The beginning of other kinds of disks, which would start no machine if they were taken for raw.
struct Foreign {
  std::string_view magic, name;
};
constexpr std::array kForeign = {Foreign{"KDMV", "VMDK"},
                                 Foreign{"# Disk DescriptorFile", "VMDK"},
                                 Foreign{"vhdxfile", "VHDX"},
                                 Foreign{"conectix", "VHD"},
                                 Foreign{"<<< Oracle VM VirtualBox", "VDI"},
                                 Foreign{std::string_view("QED\0", 4), "QED"}};

DiskHeader read_qcow2(std::string_view head) {
  const std::uint64_t version = big_endian(head, 4, 4);
  if (version != 2 && version != 3) throw failure("it is qcow2 of version " + std::to_string(version));
  if (big_endian(head, 8, 8) != 0)
    throw failure("it stands on another image, without which it says nothing")
        .hint("qemu-img convert -O qcow2 makes one that is whole");
  if (big_endian(head, 32, 4) != 0) throw failure("it is encrypted");
  const std::uint64_t features = version == 3 ? big_endian(head, 72, 8) : 0;
  if (features & (kNotClosed | kDamaged))
    throw failure(features & kDamaged ? "it is marked as damaged" : "it is in use, or was not closed")
        .hint("qemu-img check -r all mends it");
  if (features & kDataElsewhere) throw failure("its data is in another file");
  if (features & ~kKnownFeatures) throw failure("it needs features that are not known here");
  return {"qcow2", big_endian(head, 24, 8)};
}

// Only what holds something: the disks of machines are mostly empty.
void copy_with_holes(int from, int to, std::uint64_t size, const std::string& step, Progress& progress) {
  if (::ftruncate(to, static_cast<off_t>(size)) != 0) throw system_error("make the file");
  std::vector<char> chunk(1 << 20);
  for (off_t at = 0; static_cast<std::uint64_t>(at) < size;) {
    off_t begin = ::lseek(from, at, SEEK_DATA);
    if (begin < 0 && errno == ENXIO) break;
    off_t end = begin < 0 ? -1 : ::lseek(from, begin, SEEK_HOLE);
    // A filesystem that knows no holes.
    if (begin < 0 || end < 0) begin = at, end = static_cast<off_t>(size);
    for (at = begin; at < end;) {
      const auto wanted = std::min<std::uint64_t>(chunk.size(), static_cast<std::uint64_t>(end - at));
      const ssize_t got = ::pread(from, chunk.data(), wanted, at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error("read it");
      if (got == 0) throw failure("it was cut off while it was read");
      for (ssize_t done = 0; done < got;) {
        const ssize_t put = ::pwrite(to, chunk.data() + done, static_cast<std::size_t>(got - done), at + done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) throw system_error("write a copy of it");
        done += put;
      }
      at += got;
      progress.advance(step, static_cast<std::uint64_t>(at), size);
    }
  }
}

std::uint64_t size_of(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) throw system_error("stat it");
  if (!S_ISREG(info.st_mode)) throw usage_error("it is no file");
  return static_cast<std::uint64_t>(info.st_size);
}

}  // namespace

DiskHeader read_disk_header(int fd, std::string_view origin) {
  return attempt(std::string(origin) + " is no disk that a machine can have", [&] {
    const std::uint64_t file = size_of(fd);
    std::string head(kHeaderSize, '\0');
    const ssize_t got = ::pread(fd, head.data(), head.size(), 0);
    if (got < 0) throw system_error("read it");
    if (static_cast<std::size_t>(got) < head.size()) throw usage_error("it has " + std::to_string(got) + " bytes");
    for (const Foreign& foreign : kForeign)
      if (head.starts_with(foreign.magic))
        throw usage_error("it is of the kind " + std::string(foreign.name))
            .hint("qemu-img convert -O qcow2 makes one of a kind that is known here");
    const DiskHeader found = big_endian(head, 0, 4) == kQcow2Magic ? read_qcow2(head) : DiskHeader{"raw", file};
    if (found.size == 0 || found.size % kSector != 0 || found.size > kLargest)
      throw usage_error("a disk has sectors of 512 bytes, and " + std::to_string(found.size) + " bytes are none of " +
                        format_size(kLargest) + " or less");
    return found;
  });
}

DiskRequest DiskRequest::parse(std::string_view text) {
  DiskRequest request;
  const std::string_view rest = text.substr(std::string_view("disk:").size());
  const std::size_t mark = rest.rfind('?');
  request.file = rest.substr(0, mark);
  if (request.file.empty()) throw usage_error("disk: names no file");
  for (std::string_view options = mark == std::string_view::npos ? "" : rest.substr(mark + 1); !options.empty();) {
    const std::string_view option = options.substr(0, options.find('&'));
    options.remove_prefix(std::min(option.size() + 1, options.size()));
    if (option == "firmware=bios" || option == "firmware=uefi") {
      request.firmware = option.substr(option.find('=') + 1);
    } else if (option == "agent=yes" || option == "agent=no") {
      request.agent = option == "agent=yes";
    } else {
      throw usage_error("the source disk: has no option " + quote(option))
          .hint("firmware=bios, firmware=uefi, agent=yes or agent=no");
    }
  }
  return request;
}

engine::StoredLayer store_disk(engine::LayerStore& store, int file, DiskForm form, Provenance provenance,
                               const ImportOptions& options, Progress& progress) {
  if (!options.tag.empty() && !valid_tag(options.tag)) throw usage_error(quote(options.tag) + " is no tag");
  const std::string label = options.name.str() + (options.tag.empty() ? "" : ":" + options.tag);
  return attempt("cannot import " + label, [&] {
    if (options.name.kind != LayerKind::Base)
      throw usage_error("a disk has a whole system, which only a base layer is").hint("base/" + options.name.name);
    const DiskHeader header = read_disk_header(file, label);
    form.format = header.format;
    form.size = header.size;
    const std::string step = "import " + label;
    progress.begin(step);
    const std::unique_ptr<engine::BlobSession> session = store.begin_session();
    TempFile copy = session->new_file();
    copy_with_holes(file, copy.fd(), size_of(file), step, progress);
    LayerManifest manifest{.name = options.name,
                           .platform = options.platform.empty() ? host_platform() : options.platform,
                           .images = {},
                           .config = {},
                           .provenance = std::move(provenance),
                           .implicit_parents = {}};
    LayerImage image;
    image.blobs.push_back(session->adopt(std::move(copy), BlobRole::Disk));
    image.disk = form;
    manifest.images.push_back(std::move(image));
    progress.end(step, format_size(manifest.total_size()));
    return store.add(manifest, options.tag, engine::Trust::BuiltHere, *session, options.labels);
  });
}

engine::StoredLayer import_disk(engine::LayerStore& store, const DiskRequest& request, const ImportOptions& options,
                                Progress& progress) {
  const UniqueFd file = open_file(request.file, O_RDONLY);
  DiskForm form;
  form.firmware = request.firmware;
  form.agent = request.agent;
  Provenance provenance;
  provenance.source = "disk";
  return store_disk(store, file.get(), form, std::move(provenance), options, progress);
}

void check_disk(const std::filesystem::path& file, const DiskForm& form) {
  const UniqueFd disk = open_file(file, O_RDONLY);
  // A raw disk may begin with anything.
  const DiskHeader found =
      form.format == "raw" ? DiskHeader{"raw", size_of(disk.get())} : read_disk_header(disk.get(), "the disk");
  if (found.format != form.format || found.size != form.size)
    throw failure("the disk is " + found.format + " of " + std::to_string(found.size) + " bytes, and its layer says " +
                  form.format + " of " + std::to_string(form.size));
}

}  // namespace dsec::layers
