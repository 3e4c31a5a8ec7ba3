#include "runners/vm/saved_machine.h"

#include <nlohmann/json.hpp>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/engine/mapped_blob.h"
#include "runners/vm/machine_plan.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr char kRecord[] = "machine.json";

// By what a blob is called, which is its digest, and its size, which does not depend on whether anybody has mapped it
// meanwhile: what lies elsewhere has such a name, too.
std::string identity_of(const std::vector<engine::ImageFiles>& images, const std::vector<bool>& mapped) {
  std::string text;
  const auto add = [&](const fs::path& file) {
    text += " " + file.filename().native() + " " + std::to_string(engine::mapped_size(fs::file_size(file)));
  };
  for (std::size_t i = 0; i < images.size(); ++i) {
    text += mapped.at(i) ? "memory" : "drives";
    add(images[i].meta);
    if (images[i].data) add(*images[i].data);
    text += '\n';
  }
  return Digest::of(text).hex();
}

}  // namespace

MachineRecord describe_machine(const MachineParts& parts, const GuestKernel& kernel, const Limits& limits,
                               const std::vector<engine::ImageFiles>& images) {
  const std::uint64_t memory = limits.memory.value_or(kMachineMemory);
  const unsigned cpus = machine_cpus(limits);
  const MachineSpec spec =
      parts.late_drives ? warm_spec(memory, cpus, parts.pmem) : plain_spec(memory, cpus, parts.pmem);
  MachineRecord record;
  record.machine = describe_warm_machine(kernel, parts.vmm, parts.accelerator, memory, cpus, parts.pmem,
                                         make_qemu(parts.vmm, parts.accelerator)->command(spec));
  record.machine.parts["layers"] = identity_of(images, parts.mapped);
  record.kernel_name = kernel.name;
  record.release = kernel.release;
  record.late_drives = parts.late_drives;
  return record;
}

std::string misfit(const MachineRecord& then, const MachineRecord& now) {
  const std::string others = misfit(then.machine, now.machine);
  if (others.empty() && !counts_alike(then.clock, then.boot)) return "another rate of the processor's counter";
  return others;
}

void write_machine_record(const fs::path& directory, const MachineRecord& record) {
  const Json json{{"version", kVersion},
                  {"memory", record.machine.memory},
                  {"cpus", record.machine.cpus},
                  {"pmem", record.machine.pmem},
                  {"machine", record.machine.parts},
                  {"kernel", record.kernel_name},
                  {"release", record.release},
                  {"late_drives", record.late_drives},
                  {"clock", record.clock},
                  {"boot", record.boot},
                  {"vmm", record.vmm},
                  {"state", record.state_digest}};
  write_file_atomic(directory / kRecord, canonical_json(json) + "\n", 0600);
}

MachineRecord read_machine_record(const fs::path& directory) {
  return attempt("cannot read what its machine is", [&] {
    const fs::path path = directory / kRecord;
    const Json json = parse_json(read_file(path, 1 << 20), path.native());
    if (json_u64(json, "version") != kVersion) throw failure("another version of dsec has written it");
    MachineRecord record;
    try {
      record.machine.memory = json_u64(json, "memory");
      record.machine.cpus = static_cast<unsigned>(json_u64(json, "cpus"));
      record.machine.pmem = json.at("pmem").get<bool>();
      for (const auto& [part, value] : json.at("machine").items())
        record.machine.parts[part] = value.get<std::string>();
      record.kernel_name = json_string(json, "kernel");
      record.release = json_string(json, "release");
      record.late_drives = json.at("late_drives").get<bool>();
      record.clock = json_u64(json, "clock");
      record.boot = json_string(json, "boot");
      record.vmm = json_string(json, "vmm");
      record.state_digest = json_string(json, "state");
    } catch (const Json::exception& error) {
      throw failure(quote(path.native()) + " is damaged: " + error.what());
    }
    return record;
  });
}

SavedSandbox saved_sandbox_in(const fs::path& directory) {
  return {{}, {directory / "state", directory / "memory"}, directory / "disk"};
}

SavedSandbox read_saved_sandbox(const fs::path& directory) {
  SavedSandbox saved = saved_sandbox_in(directory);
  saved.record = read_machine_record(directory);
  if (!fs::exists(saved.disk)) saved.disk.clear();
  std::error_code none;
  if (fs::file_size(saved.files.memory, none) != saved.record.machine.memory || none)
    throw failure("its memory was cut off");
  if (digest_of_file(saved.files.state.native()).str() != saved.record.state_digest)
    throw failure("its state is not what was saved");
  return saved;
}

}  // namespace dsec::runners
