#include "runners/vm/warm_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/engine/lease.h"

// vm/warm/NAME holds `memory`, with holes where it is zero, `state`, what else QEMU has saved, and guest.json. A
// directory appears as a whole, and what lies in it never changes.

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kVersion = 2;
constexpr char kDescription[] = "guest.json", kState[] = "state", kMemory[] = "memory";
constexpr std::size_t kNameSize = 12;
// Between two measurements of one counter.
constexpr std::uint64_t kCounterTolerance = 1000;

fs::path place_of(const fs::path& home) { return home / "vm" / "warm"; }

// Changes with whatever replaces the file, and costs nothing to find out.
std::string file_identity(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) throw system_error("stat " + quote(path.native()));
  return std::to_string(info.st_size) + " bytes of " + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec) + ", file " + std::to_string(info.st_ino);
}

std::string processor() {
  std::ifstream text("/proc/cpuinfo");
  std::string model, flags;
  for (std::string line; std::getline(text, line) && !line.empty();) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) model = line.substr(colon + 2);
    if (line.starts_with("flags")) flags = line.substr(colon + 2);
  }
  return model + ", features " + Digest::of(flags).hex().substr(0, 16);
}

std::string name_of(const WarmMachine& machine) {
  std::string text =
      std::to_string(machine.memory) + " " + std::to_string(machine.cpus) + (machine.pmem ? " pmem" : "");
  for (const auto& [part, value] : machine.parts) text += "\n" + part + "=" + value;
  return Digest::of(text).hex().substr(0, kNameSize);
}

bool is_name(const std::string& name) {
  return name.size() == kNameSize && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Json to_json(const WarmGuest& guest) {
  return {{"version", kVersion},
          {"memory", guest.machine.memory},
          {"cpus", guest.machine.cpus},
          {"pmem", guest.machine.pmem},
          {"machine", guest.machine.parts},
          {"kernel", guest.kernel},
          {"vmm", guest.vmm},
          {"made", guest.made},
          {"bytes", guest.bytes},
          {"clock", guest.clock},
          {"boot", guest.boot},
          {"state", guest.state_digest}};
}

WarmGuest read_guest(const fs::path& place) {
  const fs::path path = place / kDescription;
  const Json json = parse_json(read_file(path, 1 << 20), path.native());
  if (json_u64(json, "version") != kVersion) throw failure("it was saved by another version of dsec");
  WarmGuest guest;
  guest.name = place.filename().native();
  guest.machine.memory = json_u64(json, "memory");
  guest.machine.cpus = static_cast<unsigned>(json_u64(json, "cpus"));
  guest.machine.pmem = json.at("pmem").get<bool>();
  for (const auto& [part, value] : json.at("machine").items()) guest.machine.parts[part] = value.get<std::string>();
  guest.kernel = json_string(json, "kernel");
  guest.vmm = json_string(json, "vmm");
  guest.made = json_u64(json, "made");
  guest.bytes = json_u64(json, "bytes");
  guest.clock = json_u64(json, "clock");
  guest.boot = json_string(json, "boot");
  guest.state_digest = json_string(json, "state");
  guest.files = {place / kState, place / kMemory};
  return guest;
}

// Pages of its memory are read when they are used, and not before.
std::string damage(const WarmGuest& guest) {
  std::error_code none;
  if (fs::file_size(guest.files.memory, none) != guest.machine.memory || none) return "its memory was cut off";
  try {
    if (digest_of_file(guest.files.state.native()).str() == guest.state_digest) return "";
  } catch (const Error& error) {
    return error.message();
  }
  return "its state is not what was saved";
}

std::uint64_t allocated(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) throw system_error("stat " + quote(path.native()));
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

}  // namespace

bool counts_alike(std::uint64_t khz, const std::string& boot) {
  if (khz == 0 || boot == host_boot()) return true;
  const std::uint64_t now = counter_khz();
  const std::uint64_t apart = now > khz ? now - khz : khz - now;
  return apart <= khz / kCounterTolerance;
}

std::string host_boot() { return engine::ProcessIdentity::self().boot_id; }

WarmMachine describe_warm_machine(const GuestKernel& kernel, const fs::path& vmm, Accelerator accelerator,
                                  std::uint64_t memory, unsigned cpus, bool pmem,
                                  const std::vector<std::string>& argv) {
  std::string words;
  for (const std::string& word : argv) words += word + '\0';
  WarmMachine machine{memory, cpus, pmem, {}};
  machine.parts["kernel"] = kernel.name + " " + kernel.release + ", " + file_identity(kernel.kernel);
  machine.parts["initramfs"] = file_identity(kernel.initramfs);
  machine.parts["QEMU"] = vmm.native() + ", " + file_identity(vmm);
  machine.parts["accelerator"] = to_string(accelerator);
  machine.parts["processor"] = processor();
  machine.parts["options of the machine"] = Digest::of(words).hex();
  return machine;
}

WarmGuest keep_warm_guest(const fs::path& home, WarmGuest guest, const MachineSnapshot& saved) {
  const fs::path all = place_of(home);
  make_directories(all, 0700);
  const FileLock lock(all / ".lock", FileLock::Mode::Exclusive);
  const TempDirectory temporary(all);
  const fs::path made = temporary.path() / "guest";
  make_directories(made, 0700);
  guest.state_digest = digest_of_file(saved.state.native()).str();
  guest.bytes = allocated(saved.state) + allocated(saved.memory);
  fs::rename(saved.state, made / kState);
  fs::rename(saved.memory, made / kMemory);
  guest.name = name_of(guest.machine);
  guest.files = {all / guest.name / kState, all / guest.name / kMemory};
  write_file_atomic(made / kDescription, canonical_json(to_json(guest)) + "\n");
  std::error_code none;
  fs::rename(all / guest.name, temporary.path() / "old", none);
  fs::rename(made, all / guest.name);
  sync_directory(all);
  return guest;
}

std::optional<WarmGuest> find_warm_guest(const fs::path& home, const WarmMachine& machine) {
  const fs::path place = place_of(home) / name_of(machine);
  if (!fs::exists(place / kDescription)) return std::nullopt;
  try {
    WarmGuest guest = read_guest(place);
    if (guest.machine == machine && damage(guest).empty() && counts_alike(guest.clock, guest.boot)) return guest;
  } catch (const std::exception&) {
    // A guest begins without it as well, and `dsec vm snapshot ls` tells of it.
  }
  return std::nullopt;
}

std::vector<WarmGuest> list_warm_guests(const fs::path& home, std::vector<std::string>& problems) {
  std::vector<WarmGuest> guests;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(place_of(home), none)) {
    if (!is_name(entry.path().filename().native())) continue;
    try {
      guests.push_back(read_guest(entry.path()));
    } catch (const std::exception& error) {
      problems.push_back("the saved guest " + entry.path().filename().native() + " cannot be read: " + error.what());
    }
  }
  std::sort(guests.begin(), guests.end(), [](const auto& left, const auto& right) { return left.name < right.name; });
  return guests;
}

std::string misfit(const WarmMachine& then, const WarmMachine& now) {
  std::set<std::string> names;
  for (const WarmMachine* machine : {&then, &now})
    for (const auto& [part, value] : machine->parts) names.insert(part);
  std::string others;
  const auto add = [&](const std::string& part) { others += (others.empty() ? "other " : ", ") + part; };
  for (const std::string& part : names) {
    const auto old = then.parts.find(part), current = now.parts.find(part);
    if (old == then.parts.end() || current == now.parts.end() || old->second != current->second) add(part);
  }
  if (then.memory != now.memory) add("memory");
  if (then.cpus != now.cpus) add("number of processors");
  if (then.pmem != now.pmem) add("room for layers in memory");
  return others;
}

std::string misfit(const WarmGuest& guest, const WarmMachine& machine) {
  if (std::string why = damage(guest); !why.empty()) return why;
  const std::string others = misfit(guest.machine, machine);
  if (others.empty() && !counts_alike(guest.clock, guest.boot)) return "the processor's counter runs at another rate";
  return others;
}

bool remove_warm_guest(const fs::path& home, const std::string& name) {
  const fs::path all = place_of(home);
  if (!is_name(name) || !fs::exists(all / name)) return false;
  const FileLock lock(all / ".lock", FileLock::Mode::Exclusive);
  const TempDirectory aside(all);
  std::error_code none;
  fs::rename(all / name, aside.path() / "old", none);
  sync_directory(all);
  return !none;
}

}  // namespace dsec::runners
