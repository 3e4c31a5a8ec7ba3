#include "layers/disk/bootable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/qcow2_writer.h"
#include "core/base/units.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kMebibyte = 1ull << 20, kSector = 512;
// The first partition has the loaders, kernel and initramfs; a FAT32 of less has too few clusters to be one.
constexpr std::uint64_t kBootAt = kMebibyte, kBootSize = 192 * kMebibyte, kRootAt = kBootAt + kBootSize;
constexpr std::uint64_t kSmallest = 1024 * kMebibyte;
constexpr char kMbrCode[] = "/usr/lib/syslinux/mbr/mbr.bin";
constexpr char kUefiLoader[] = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi";
// What the kernel is told: its words go to the screen and to the serial port, and the latter is /dev/console. Where a
// processor is emulated on a busy host, the kernel would find that the machine's timer does not work.
constexpr char kKernelWords[] = "root=LABEL=dsec-root rw quiet no_timer_check console=tty0 console=ttyS0,115200";

// What a system needs beside what mmdebstrap takes in any case. Without dbus nothing hears the machine's power button.
constexpr const char* kPackages[] = {"linux-image-amd64", "systemd-sysv", "udev", "dbus"};

// An initramfs for disks of machines, and not for all that a PC may have: it is made, read and unpacked in a fifth of
// the time. It is in place before the kernel is installed.
constexpr char kInitramfsHook[] =
    "--essential-hook=mkdir -p \"$1/etc/initramfs-tools/conf.d\" \"$1/usr/share/initramfs-tools/modules.d\" && "
    "echo MODULES=list > \"$1/etc/initramfs-tools/conf.d/dsec\" && "
    "printf '%s\\n' virtio_pci virtio_blk virtio_scsi ahci sd_mod nvme ext4 "
    "> \"$1/usr/share/initramfs-tools/modules.d/dsec\"";
// Who is interrupted begins anew: nothing of the tree has to be on this host's disk.
constexpr char kUnsafeOption[] = "--dpkgopt=force-unsafe-io", kUnsafeFile[] = "etc/dpkg/dpkg.cfg.d/99mmdebstrap";

// It ends at once, with what it has started: it does nothing when it is asked to, and the system would wait for it.
constexpr char kAgentUnit[] =
    "[Unit]\n"
    "Description=Agent of dsec\n"
    "Documentation=man:dsec-guest-channel(7)\n"
    "After=systemd-user-sessions.service\n"
    "\n"
    "[Service]\n"
    "ExecStart=/usr/lib/dsec/dsec-init agent\n"
    "Restart=always\n"
    "RestartSec=1\n"
    "OOMScoreAdjust=-999\n"
    "KillSignal=SIGKILL\n"
    "\n"
    "[Install]\n"
    "WantedBy=multi-user.target\n";

void run(const std::vector<std::string>& argv, const char* package) {
  attempt("cannot run " + argv.front(), [&] {
    const CommandResult result = [&] {
      try {
        SpawnOptions spawn;
        spawn.argv = argv;
        return run_command(spawn);
      } catch (Error& error) {
        throw std::move(error.hint(std::string("apt-get install ") + package));
      }
    }();
    if (result.status.ok()) return;
    const std::string said = result.err.substr(result.err.size() > 400 ? result.err.size() - 400 : 0);
    throw failure("it ended with " + result.status.str() + ": " + quote(said));
  });
}

// Of a system that others made: its links lead to where its own root is, and must not lead to ours.
void put_file(const fs::path& root, const std::string& path, std::string_view content, mode_t mode = 0644) {
  const fs::path target = root / path, folder = fs::path(path).parent_path();
  make_directories(target.parent_path());
  const fs::path real_root = fs::canonical(root);
  if (fs::canonical(target.parent_path()) != (folder.empty() ? real_root : real_root / folder))
    throw failure(quote(path) + " of the system lies behind a link");
  write_file_atomic(target, content, mode);
}

fs::path only_file(const fs::path& directory, std::string_view prefix) {
  std::optional<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (!entry.path().filename().native().starts_with(prefix) || !entry.is_regular_file()) continue;
    if (found) throw failure("the system has more than one kernel");
    found = entry.path();
  }
  if (!found) throw failure("the system has no " + std::string(prefix) + "…");
  return *found;
}

std::string without_password(const std::string& shadow) {
  const std::size_t line = shadow.find("\nroot:");
  if (!shadow.starts_with("root:") && line == std::string::npos) throw failure("its /etc/shadow has no root");
  const std::size_t begin = shadow.starts_with("root:") ? 0 : line + 1;
  const std::size_t field = shadow.find(':', begin), end = shadow.find(':', field + 1);
  if (field == std::string::npos || end == std::string::npos) throw failure("its /etc/shadow is cut off");
  return shadow.substr(0, field + 1) + shadow.substr(end);
}

void remove_root_password(const fs::path& root) {
  const fs::path shadow = root / "etc/shadow";
  struct stat info = {};
  if (::lstat(shadow.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) throw failure("it has no /etc/shadow");
  put_file(root, "etc/shadow", without_password(read_file(shadow)), info.st_mode & 07777);
  if (::lchown(shadow.c_str(), info.st_uid, info.st_gid) != 0) throw system_error("give /etc/shadow its owner");
}

void prepare_system(const fs::path& root, const BootableRequest& request) {
  for (const char* copied : {"etc/resolv.conf", "etc/hostname", kUnsafeFile}) ::unlink((root / copied).c_str());
  put_file(root, "etc/machine-id", "");
  put_file(root, "etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
  put_file(root, "etc/fstab", "LABEL=dsec-root / ext4 errors=remount-ro 0 1\n");
  remove_root_password(root);
  put_file(root, "usr/lib/dsec/dsec-init", request.agent, 0755);
  put_file(root, "usr/lib/dsec/dsec-guest", request.helper, 0755);
  put_file(root, "etc/systemd/system/dsec-agent.service", kAgentUnit);
  const fs::path wants = root / "etc/systemd/system/multi-user.target.wants";
  make_directories(wants);
  if (::symlink("../dsec-agent.service", (wants / "dsec-agent.service").c_str()) != 0 && errno != EEXIST)
    throw system_error("make its agent begin");
}

void put_little(std::string& bytes, std::size_t at, std::uint64_t number, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes.at(at + i) = static_cast<char>(number >> (8 * i) & 0xff);
}

// A table of two partitions as PCs have had it since DOS: a BIOS begins with the code before it, UEFI finds the type.
void write_partitions(int disk, std::uint64_t size) {
  constexpr std::size_t kTable = 446, kEntry = 16, kMostCode = 440;
  constexpr std::uint64_t kUefiType = 0xef, kLinuxType = 0x83;
  std::string sector = read_file(kMbrCode, kMostCode);
  sector.resize(kSector);
  const auto entry = [&](std::size_t number, bool active, std::uint64_t type, std::uint64_t at, std::uint64_t length) {
    const std::size_t begin = kTable + number * kEntry;
    sector[begin] = static_cast<char>(active ? 0x80 : 0);
    // Cylinders, heads and sectors that nothing can be counted in: the numbers of sectors count.
    for (const std::size_t field : {begin + 1, begin + 5}) put_little(sector, field, 0xfffffe, 3);
    put_little(sector, begin + 4, type, 1);
    put_little(sector, begin + 8, at / kSector, 4);
    put_little(sector, begin + 12, length / kSector, 4);
  };
  entry(0, true, kUefiType, kBootAt, kBootSize);
  entry(1, false, kLinuxType, kRootAt, size - kRootAt);
  put_little(sector, 510, 0xaa55, 2);
  if (::pwrite(disk, sector.data(), sector.size(), 0) != static_cast<ssize_t>(sector.size()))
    throw system_error("write the table of partitions");
}

void fill_boot_partition(const fs::path& disk, const fs::path& work, const fs::path& root) {
  const std::string sectors = std::to_string(kBootAt / kSector);
  run({"mkfs.fat", "-F", "32", "-s", "2", "-n", "DSEC-BOOT", "-i", "64736563", "--offset", sectors, disk.native(),
       std::to_string(kBootSize / 1024)},
      "dosfstools");
  const std::string place = disk.native() + "@@" + std::to_string(kBootAt);
  const fs::path tree = work / "boot";
  const std::string words = kKernelWords;
  put_file(tree, "syslinux.cfg",
           "DEFAULT linux\nPROMPT 0\nTIMEOUT 0\nLABEL linux\n  LINUX /vmlinuz\n  INITRD /initrd.img\n  APPEND " +
               words + "\n");
  put_file(tree, "loader/loader.conf", "default linux.conf\ntimeout 0\n");
  put_file(tree, "loader/entries/linux.conf",
           "title Debian\nlinux /vmlinuz\ninitrd /initrd.img\noptions " + words + "\n");
  put_file(tree, "EFI/BOOT/BOOTX64.EFI", read_file(kUefiLoader));
  run({"mcopy", "-s", "-i", place, (tree / "syslinux.cfg").native(), (tree / "loader").native(),
       (tree / "EFI").native(), "::/"},
      "mtools");
  run({"mcopy", "-i", place, only_file(root / "boot", "vmlinuz-").native(), "::/vmlinuz"}, "mtools");
  run({"mcopy", "-i", place, only_file(root / "boot", "initrd.img-").native(), "::/initrd.img"}, "mtools");
  run({"syslinux", "--offset", std::to_string(kBootAt), "--install", disk.native()}, "syslinux");
}

// Only what holds something.
void write_qcow2(int from, std::uint64_t size, int to, const std::string& step, Progress& progress) {
  Qcow2Writer writer(to, size);
  std::string cluster;
  for (std::uint64_t number = 0; number * kQcow2Cluster < size; ++number) {
    const off_t data = ::lseek(from, static_cast<off_t>(number * kQcow2Cluster), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    if (data < 0) throw system_error("read the disk");
    number = static_cast<std::uint64_t>(data) / kQcow2Cluster;
    cluster.assign(kQcow2Cluster, '\0');
    const ssize_t got = ::pread(from, cluster.data(), cluster.size(), static_cast<off_t>(number * kQcow2Cluster));
    if (got < 0) throw system_error("read the disk");
    if (cluster.find_first_not_of('\0') == std::string::npos) continue;
    writer.put(number, cluster);
    progress.advance(step, number * kQcow2Cluster, size);
  }
  writer.finish();
}

void check(const BootableRequest& request) {
  if (request.size < kSmallest || request.size % kMebibyte != 0)
    throw usage_error("a disk with a system has a multiple of 1 MiB, " + format_size(kSmallest) + " or more");
  for (const auto& [file, package] :
       {std::pair(kMbrCode, "syslinux-common"), std::pair(kUefiLoader, "systemd-boot-efi")})
    if (!fs::exists(file)) throw failure(quote(file) + " is not here").hint(std::string("apt-get install ") + package);
  if (host_platform() != "linux/amd64") throw failure("disks are made for x86-64 only, and on it");
}

}  // namespace

engine::StoredLayer build_bootable(engine::LayerStore& store, const BootableRequest& request,
                                   const ImportOptions& options, Progress& progress) {
  check(request);
  return attempt("cannot build " + options.name.str(), [&] {
    const TempDirectory work(request.system.spool);
    const fs::path root = work.path() / "root", raw = work.path() / "disk", packed = work.path() / "disk.qcow2";
    DebootstrapRequest system = request.system;
    system.include.insert(system.include.end(), std::begin(kPackages), std::end(kPackages));
    run_mmdebstrap(system,
                   {.platform = "", .output = -1, .directory = root, .options = {kInitramfsHook, kUnsafeOption}},
                   progress);
    const std::string packages = [&] {
      std::string text;
      for (const std::string& package : installed_packages(read_file(root / "var/lib/dpkg/status")))
        text += package + "\n";
      return text;
    }();
    prepare_system(root, request);

    const std::string step = "disk of " + options.name.str();
    progress.begin(step);
    const UniqueFd disk = open_file(raw, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (::ftruncate(disk.get(), static_cast<off_t>(request.size)) != 0) throw system_error("make the disk");
    run({"mke2fs", "-q", "-F", "-t", "ext4", "-L", "dsec-root", "-d", root.native(), "-E",
         "offset=" + std::to_string(kRootAt), raw.native(), std::to_string((request.size - kRootAt) / 1024) + "k"},
        "e2fsprogs");
    fill_boot_partition(raw, work.path(), root);
    write_partitions(disk.get(), request.size);
    const UniqueFd qcow2 = open_file(packed, O_RDWR | O_CREAT | O_EXCL, 0600);
    write_qcow2(disk.get(), request.size, qcow2.get(), step, progress);
    progress.end(step, format_size(request.size));

    DiskForm form;
    form.firmware = request.firmware;
    form.agent = true;
    Provenance provenance;
    provenance.source = "debootstrap";
    provenance.inputs = {{"suite", system.suite}, {"packages", Digest::of(packages).str()}};
    provenance.options = {{"variant", system.variant}, {"disk", std::to_string(request.size)}};
    for (const std::string& package : request.system.include)
      provenance.options["include"] += (provenance.options["include"].empty() ? "" : ",") + package;
    return store_disk(store, qcow2.get(), form, std::move(provenance), options, progress);
  });
}

}  // namespace dsec::layers
