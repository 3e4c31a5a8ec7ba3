#include "runners/vm/vmm.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"

namespace dsec::runners {
namespace {

constexpr std::uint64_t kMebibyte = 1ull << 20;
constexpr std::uint64_t kLeastMemory = 64 * kMebibyte;
constexpr unsigned kMostCpus = 32;
// The kernel takes 2048 bytes, with the NUL.
constexpr std::size_t kLongestCommandLine = 2047;

bool is_name(const std::string& id) {
  return !id.empty() && id.size() <= 20 &&
         std::all_of(id.begin(), id.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); });
}

void check_name(std::set<std::string>& taken, const std::string& id) {
  if (!is_name(id)) throw failure(quote(id) + " is no name for a device of a machine");
  if (!taken.insert(id).second) throw failure("two devices of a machine are named " + quote(id));
}

}  // namespace

void check_machine(const MachineSpec& spec) {
  if (spec.cpus < 1 || spec.cpus > kMostCpus)
    throw usage_error("a machine has 1 to " + std::to_string(kMostCpus) + " processors, not " +
                      std::to_string(spec.cpus));
  if (spec.memory < kLeastMemory)
    throw usage_error("a machine with " + format_size(spec.memory) + " of memory cannot begin")
        .hint("use at least " + format_size(kLeastMemory));
  if (spec.memory % kMebibyte != 0) throw usage_error("the memory of a machine is a multiple of 1 MiB");
  if (spec.command_line.size() > kLongestCommandLine || spec.command_line.find('\0') != std::string::npos)
    throw failure("the kernel takes no command line of " + std::to_string(spec.command_line.size()) + " bytes");
  std::set<std::string> names;
  for (const MachineDrive& drive : spec.drives) check_name(names, drive.id);
  for (const MachinePmem& pmem : spec.pmem) check_name(names, pmem.id);
}

}  // namespace dsec::runners
