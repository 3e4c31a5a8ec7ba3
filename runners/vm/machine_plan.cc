#include "runners/vm/machine_plan.h"

#include "runners/protocol/guest_channel.h"
#include "runners/vm/machine_root.h"

namespace dsec::runners {
namespace {

std::string command_line() {
  return std::string("console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on dsec.channel=virtio:") +
         channel::kPortName;
}

}  // namespace

MachineSpec plain_spec(std::uint64_t memory, unsigned cpus, bool pmem) {
  MachineSpec machine;
  machine.kernel = "/guest/kernel";
  machine.initramfs = "/guest/initramfs";
  machine.command_line = command_line();
  // Addresses beyond 4 GiB make a kernel set 64 MiB of memory aside for devices that cannot reach these. Ours can.
  if (pmem) machine.command_line += " swiotlb=noforce";
  machine.has_pmem_room = pmem;
  machine.cpus = cpus;
  machine.memory = memory;
  machine.channel = std::string(kMachineInside) + "/channel.sock";
  machine.control = std::string(kMachineInside) + "/control.sock";
  machine.console = std::string(kMachineInside) + "/console";
  return machine;
}

MachineSpec warm_spec(std::uint64_t memory, unsigned cpus, bool pmem) {
  MachineSpec machine = plain_spec(memory, cpus, pmem);
  machine.command_line += " dsec.drives=late";
  for (std::size_t i = 0; i < kQemuDrives; ++i)
    machine.drives.push_back({.id = "none" + std::to_string(i), .file = {}});
  return machine;
}

WarmMachine warm_machine(const MachineParts& parts, const GuestKernel& kernel, const Limits& limits, bool pmem) {
  const std::uint64_t memory = limits.memory.value_or(kMachineMemory);
  const unsigned cpus = machine_cpus(limits);
  return describe_warm_machine(kernel, parts.vmm, parts.accelerator, memory, cpus, pmem,
                               make_qemu(parts.vmm, parts.accelerator)->command(warm_spec(memory, cpus, pmem)));
}

}  // namespace dsec::runners
