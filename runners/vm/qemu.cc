#include "runners/vm/qemu.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "runners/protocol/guest_channel.h"
#include "runners/vm/qemu_stream.h"
#include "runners/vm/qmp.h"
#include "runners/vm/vmm_socket.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

// With ACPI the machine has two I/O APICs and 24 places for virtio devices; the channel, the balloon and the random
// numbers have one each.
static_assert(kQemuDrives == 24 - 3);
constexpr int kPipeSize = 1 << 20;
constexpr std::uint64_t kMostMemory = 1ull << 40;
constexpr std::uint64_t kDiskRate = 4ull << 30;
// For as long requests wait for what serves a disk to come back.
constexpr std::chrono::seconds kReconnect{60};
constexpr char kBalloon[] = "/machine/peripheral/balloon";

// A comma would begin another option.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == ',' ? ",," : std::string(1, c);
  return out;
}

class QemuControl final : public MachineControl {
 public:
  QemuControl(UniqueFd socket, milliseconds patience) : qmp_(std::move(socket), patience) {}

  void boot(const MachineSpec&) override {
    if (state() != MachineState::Running) resume();
    // From then on it asks the guest once a second.
    qmp_.execute("qom-set", {{"path", kBalloon}, {"property", "guest-stats-polling-interval"}, {"value", 1}},
                 kControlPatience);
  }

  MachineState state() override {
    const std::string word = json_string(qmp_.execute("query-status", kControlPatience), "status");
    if (word == "running") return MachineState::Running;
    if (word == "prelaunch" || word == "inmigrate") return MachineState::NotStarted;
    if (word == "shutdown" || word == "guest-panicked" || word == "internal-error" || word == "io-error")
      return MachineState::Ended;
    return MachineState::Paused;
  }
  void pause() override { qmp_.execute("stop", kControlPatience); }
  void resume() override { qmp_.execute("cont", kControlPatience); }

  // QEMU counts what the guest is to have left.
  void set_balloon(std::uint64_t bytes) override {
    const std::uint64_t all = memory_size();
    if (bytes >= all) throw failure("the guest has " + std::to_string(all) + " bytes of memory");
    qmp_.execute("balloon", {{"value", all - bytes}}, kControlPatience);
  }

  GuestMemory memory() override {
    GuestMemory memory;
    const std::uint64_t left = json_u64(qmp_.execute("query-balloon", kControlPatience), "actual"), all = memory_size();
    memory.balloon = all > left ? all - left : 0;
    const Json told = qmp_.execute("qom-get", {{"path", kBalloon}, {"property", "guest-stats"}}, kControlPatience);
    const auto stats = told.find("stats");
    if (stats == told.end() || !stats->is_object()) return memory;
    // What the guest has not told is all ones.
    const auto figure = [&](const char* name) -> std::optional<std::uint64_t> {
      const auto found = stats->find(name);
      if (found == stats->end() || !found->is_number_unsigned()) return std::nullopt;
      const auto value = found->get<std::uint64_t>();
      return value == ~std::uint64_t{0} ? std::nullopt : std::optional(value);
    };
    memory.total = figure("stat-total-memory");
    memory.available = figure("stat-available-memory");
    memory.free = figure("stat-free-memory");
    memory.caches = figure("stat-disk-caches");
    return memory;
  }

  // One stream, which comes through a pipe and is taken apart here. By descriptor: QEMU's system call filter lets it
  // start no program.
  void save(const MachineSnapshot& to) override {
    const auto until = steady_clock::now() + kSnapshotPatience;
    const UniqueFd state = open_file(to.state, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    const UniqueFd memory = open_file(to.memory, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    std::pair<UniqueFd, UniqueFd> stream = make_pipe();
    (void)::fcntl(stream.second.get(), F_SETPIPE_SZ, kPipeSize);
    qmp_.execute("getfd", {{"fdname", "snapshot"}}, kControlPatience, stream.second.get());
    stream.second.reset();
    // Nothing of the guest waits for it, and it is no network that others share.
    qmp_.execute("migrate-set-parameters", {{"max-bandwidth", kDiskRate}}, kControlPatience);
    const std::uint64_t size = memory_size();
    if (size > kMostMemory) throw failure("QEMU says that it has " + std::to_string(size) + " bytes of memory");
    qmp_.execute("migrate", {{"uri", "fd:snapshot"}}, kControlPatience);
    bool ended = false;
    const ReadSome read = [&](char* into, std::size_t most) {
      const std::size_t got = read_by(stream.first.get(), into, most, until);
      ended = got == 0;
      return got;
    };
    try {
      split_qemu_stream(read, memory_name(), size, memory.get(), state.get());
    } catch (const Error&) {
      // Where its end has come too early QEMU knows why.
      if (ended) await_migration(until);
      throw;
    }
    await_migration(until);
    for (const UniqueFd* file : {&state, &memory})
      if (::fsync(file->get()) != 0) throw system_error("write what was saved");
  }

  // The memory is there already.
  void load(const MachineSnapshot& from) override {
    const UniqueFd file = open_file(from.state, O_RDONLY | O_NOFOLLOW);
    qmp_.execute("getfd", {{"fdname", "snapshot"}}, kControlPatience, file.get());
    qmp_.execute("migrate-incoming", {{"uri", "fd:snapshot"}}, kControlPatience);
    await_migration(steady_clock::now() + kSnapshotPatience);
  }

  void quit() override { qmp_.execute("quit", kControlPatience); }

 private:
  static std::size_t read_by(int stream, char* into, std::size_t most, steady_clock::time_point until) {
    for (;;) {
      const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now()).count();
      pollfd ready{stream, POLLIN, 0};
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) == 0) throw failure("QEMU did not end it in time");
      const ssize_t got = ::read(stream, into, most);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR && errno != EAGAIN) throw system_error("read what QEMU saves");
    }
  }

  void await_migration(steady_clock::time_point until) {
    while (steady_clock::now() < until) {
      const Json told = qmp_.execute("query-migrate", kControlPatience);
      const std::string status = json_string_or(told, "status", "none");
      if (status == "completed") return;
      if (status == "failed" || status == "cancelled")
        throw failure("QEMU says that it " + status + ": " + json_string_or(told, "error-desc", "not why"));
      std::this_thread::sleep_for(milliseconds(2));
    }
    throw failure("QEMU did not end it in time");
  }

  // The last part of its object's path.
  std::string memory_name() {
    const Json told = qmp_.execute("qom-get", {{"path", "/machine"}, {"property", "memory-backend"}}, kControlPatience);
    const std::string path = told.is_string() ? told.get<std::string>() : "";
    if (path.empty()) throw failure("QEMU does not say what its memory is");
    return fs::path(path).filename();
  }

  std::uint64_t memory_size() {
    return json_u64(qmp_.execute("query-memory-size-summary", kControlPatience), "base-memory");
  }

  Qmp qmp_;
};

class Qemu final : public Vmm {
 public:
  Qemu(fs::path program, Accelerator accelerator) : program_(std::move(program)), accelerator_(accelerator) {}

  const std::string& name() const override { return name_; }

  void check(const MachineSpec& spec) const override {
    check_machine(spec);
    if (spec.drives.size() > kQemuDrives)
      throw failure("the layers have " + std::to_string(spec.drives.size()) +
                    " files, and QEMU's machine has room for " + std::to_string(kQemuDrives) + " drives")
          .hint("import with a larger --collapse-limit makes fewer of them");
    if (!spec.pmem.empty() && !spec.has_pmem_room) throw failure("QEMU's microvm has no persistent memory");
    std::uint64_t mapped = 0;
    for (const MachinePmem& pmem : spec.pmem) {
      if (pmem.size == 0 || pmem.size % kPmemAlignment != 0)
        throw failure("memory of " + std::to_string(pmem.size) + " bytes is no multiple of 2 MiB");
      mapped += pmem.size;
    }
    if (mapped > kPmemRoom || spec.pmem.size() > 2 * kMostMapped)
      throw failure("the layers have " + std::to_string(spec.pmem.size()) + " files of " + format_size(mapped) +
                    " to be memory of a guest, and QEMU's machine has room for " + std::to_string(2 * kMostMapped) +
                    " of " + format_size(kPmemRoom))
          .hint("--pmem auto");
  }

  std::vector<std::string> command(const MachineSpec& spec) const override {
    check(spec);
    std::vector<std::string> argv{program_.native()};
    const auto add = [&](std::initializer_list<std::string> words) { argv.insert(argv.end(), words); };
    const Board board = board_of(spec);
    const bool has_saved = !spec.saved_memory.empty();
    add({"-M", board.machine + (has_saved ? ",memory-backend=" + board.memory : "")});
    add({"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"});
    // A guest's translated code takes no more than this; without the option it may be an eighth of the host's memory.
    // Nor is copying byte by byte fast there, which a kernel takes these two features to promise: it copies words then.
    if (accelerator_ == Accelerator::Tcg) add({"-accel", "tcg,tb-size=64", "-cpu", "max,-erms,-fsrm"});
    if (accelerator_ == Accelerator::Kvm) add({"-accel", "kvm", "-cpu", "host"});
    std::string memory = std::to_string(spec.memory >> 20) + "M";
    if (spec.has_pmem_room) memory += ",maxmem=" + std::to_string((spec.memory + kPmemRoom) >> 20) + "M";
    add({"-m", memory, "-smp", std::to_string(spec.cpus)});
    if (has_saved)
      add({"-object", "memory-backend-file,id=" + board.memory + ",size=" + std::to_string(spec.memory) +
                          ",share=off,mem-path=" + escaped(spec.saved_memory.native())});
    add({"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"});
    add({"-kernel", spec.kernel.native(), "-append", spec.command_line});
    if (!spec.initramfs.empty()) add({"-initrd", spec.initramfs.native()});
    add({"-global", board.modern});
    for (const MachineDrive& drive : spec.drives) add_drive(argv, drive, board);
    if (!spec.channel.empty()) {
      add({"-chardev", "socket,id=channel,server=on,wait=off,path=" + escaped(spec.channel.native())});
      add({"-device", board.device("virtio-serial"), "-device",
           "virtserialport,chardev=channel,name=" + std::string(channel::kPortName)});
    }
    add({"-device", board.device("virtio-balloon") + ",id=balloon,deflate-on-oom=on,free-page-reporting=" +
                        (spec.reports_free_pages ? "on" : "off")});
    add({"-object", "rng-random,id=random,filename=/dev/urandom", "-device",
         board.device("virtio-rng") + ",rng=random"});
    for (std::size_t i = 0; i < spec.pmem.size(); ++i) add_pmem(argv, spec.pmem[i], i);
    if (spec.console.empty()) {
      add({"-serial", "null"});
    } else {
      add({"-chardev", "file,id=console,path=" + escaped(spec.console.native()), "-serial", "chardev:console"});
    }
    if (spec.restores) add({"-incoming", "defer"});
    if (!spec.control.empty()) add({"-qmp", "unix:" + escaped(spec.control.native()) + ",server=on,wait=off"});
    return argv;
  }

  std::unique_ptr<MachineControl> control(const fs::path& socket, milliseconds patience) const override {
    return std::make_unique<QemuControl>(connect_to_vmm(socket, patience), std::max(patience, milliseconds(1000)));
  }

 private:
  // What the guest finds its devices on. `memory`: what QEMU calls its memory, also in what it saves.
  struct Board {
    std::string machine, memory;
    const char *bus, *modern;
    std::string device(const std::string& kind) const { return kind + "-" + bus; }
  };
  // microvm takes a pmem device and leaves its memory at address 0, where nothing is mapped.
  static Board board_of(const MachineSpec& spec) {
    if (!spec.has_pmem_room) return {"microvm,acpi=on", "microvm.ram", "device", "virtio-mmio.force-legacy=false"};
    return {"q35,smm=off,usb=off,sata=off,smbus=off,vmport=off,i8042=off,hpet=off,graphics=off", "pc.ram", "pci",
            "virtio-pci.disable-legacy=on"};
  }

  // Behind all other devices, eight to a slot: who goes on from a machine without them looks for what came meanwhile.
  static void add_pmem(std::vector<std::string>& argv, const MachinePmem& pmem, std::size_t number) {
    constexpr unsigned kFirstSlot = 0x19;
    argv.insert(argv.end(), {"-object", canonical_json({{"qom-type", "memory-backend-file"},
                                                        {"id", "memory-" + pmem.id},
                                                        {"mem-path", pmem.file.native()},
                                                        {"size", pmem.size},
                                                        {"align", kPmemAlignment},
                                                        {"share", true},
                                                        {"readonly", true}})});
    char place[16];
    std::snprintf(place, sizeof place, "%x.%x", kFirstSlot + static_cast<unsigned>(number / 8),
                  static_cast<unsigned>(number % 8));
    argv.insert(argv.end(), {"-device", "virtio-pmem-pci,id=" + pmem.id + ",memdev=memory-" + pmem.id +
                                            ",multifunction=on,addr=" + place});
  }

  static void add_drive(std::vector<std::string>& argv, const MachineDrive& drive, const Board& board) {
    const auto add_node = [&](const Json& node) { argv.insert(argv.end(), {"-blockdev", canonical_json(node)}); };
    if (drive.file.empty() && drive.nbd.empty()) {
      add_node({{"driver", "null-co"}, {"size", 0}, {"node-name", drive.id}, {"read-only", true}});
      add_device(argv, board, drive.id, drive.id);
      return;
    }
    Json node{{"driver", "nbd"}, {"node-name", drive.id}, {"read-only", drive.read_only}};
    if (drive.nbd.empty()) {
      // What lies below is cached by the host once for all machines that read it.
      add_node({{"driver", "file"},
                {"filename", drive.file.native()},
                {"node-name", "file-" + drive.id},
                {"read-only", drive.read_only},
                {"discard", drive.read_only ? "ignore" : "unmap"}});
      node["driver"] = "raw";
      node["file"] = "file-" + drive.id;
    } else {
      node["server"] = {{"type", "unix"}, {"path", drive.nbd.native()}};
      node["reconnect-delay"] = kReconnect.count();
    }
    node["discard"] = drive.read_only ? "ignore" : "unmap";
    // Zeros become holes.
    if (!drive.read_only) node["detect-zeroes"] = "unmap";
    add_node(node);
    std::string top = drive.id;
    if (drive.rate != DriveRate{}) {
      std::string limits = "throttle-group,id=rate-" + drive.id;
      if (drive.rate.bytes) limits += ",x-bps-total=" + std::to_string(drive.rate.bytes);
      if (drive.rate.operations) limits += ",x-iops-total=" + std::to_string(drive.rate.operations);
      argv.insert(argv.end(), {"-object", limits});
      top = "slow-" + drive.id;
      add_node({{"driver", "throttle"},
                {"file", drive.id},
                {"node-name", top},
                {"throttle-group", "rate-" + drive.id},
                {"read-only", drive.read_only}});
    }
    add_device(argv, board, top, drive.id);
  }

  static void add_device(std::vector<std::string>& argv, const Board& board, const std::string& node,
                         const std::string& serial) {
    argv.insert(argv.end(), {"-device", board.device("virtio-blk") + ",drive=" + node + ",serial=" + serial});
  }

  const std::string name_ = "qemu";
  const fs::path program_;
  const Accelerator accelerator_;
};

}  // namespace

std::unique_ptr<MachineControl> make_qemu_control(UniqueFd socket, milliseconds patience) {
  return std::make_unique<QemuControl>(std::move(socket), patience);
}

std::string qemu_version(const fs::path& qemu) {
  const CommandResult told =
      run_command({.argv = {qemu.native(), "--version"}, .environment = {}, .directory = "/", .descriptors = {}});
  const std::string word = "version ";
  const auto begin = told.out.find(word);
  if (!told.status.ok() || begin == std::string::npos) return "unknown";
  const auto from = begin + word.size();
  return told.out.substr(from, told.out.find_first_not_of("0123456789.", from) - from);
}

std::string_view to_string(Accelerator accelerator) { return accelerator == Accelerator::Kvm ? "KVM" : "TCG"; }

std::unique_ptr<Vmm> make_qemu(fs::path program, Accelerator accelerator) {
  return std::make_unique<Qemu>(std::move(program), accelerator);
}

}  // namespace dsec::runners
