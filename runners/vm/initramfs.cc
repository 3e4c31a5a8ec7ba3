#include "runners/vm/initramfs.h"

#include <array>
#include <set>

#include "core/base/error.h"
#include "runners/vm/cpio.h"
#include "runners/vm/unpacked.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

/// One of `names` is enough; without any the group goes on when it is optional.
struct Wish {
  const char* group;
  std::vector<const char*> names;
  bool needed;
};

// How connections come to the agent, whoever they are for.
constexpr char kEgressModule[] = "nft_tproxy";

const std::vector<Wish>& wishes() {
  static const std::vector<Wish> all = {
      // How devices are reached: on the bus of microvm and Firecracker, on that of q35.
      {"boot", {"virtio_mmio"}, false}, {"boot", {"virtio_pci"}, false},
      {"boot", {"virtio_blk"}, true},   {"boot", {"virtio_console"}, true},
      {"boot", {"virtio_rng"}, false},  {"boot", {"virtio_balloon"}, false},
      {"boot", {"erofs"}, true},        {"boot", {"overlay"}, true},
      {"boot", {"ext4"}, true},         {"vsock", {"vmw_vsock_virtio_transport"}, false},
      {"pmem", {"virtio_pmem"}, false}, {"pmem", {"nd_pmem"}, false},
      {"net", {"virtio_net"}, false},   {"egress", {kEgressModule}, false},
  };
  return all;
}

std::string names_of(const std::vector<fs::path>& files) {
  std::string text;
  for (const fs::path& file : files) text += module_name(file) + ".ko\n";
  return text;
}

}  // namespace

bool can_carry_egress(const ModuleTable& table) { return table.exists(kEgressModule); }

std::vector<ModuleGroup> choose_modules(ModuleTable& table) {
  std::vector<ModuleGroup> groups;
  for (const Wish& wish : wishes()) {
    if (groups.empty() || groups.back().name != wish.group) groups.push_back({wish.group, {}});
    for (const char* name : wish.names) {
      if (!wish.needed && !table.exists(name)) continue;
      attempt("this kernel cannot run a guest of dsec", [&] { table.add(name, groups.back().files); });
    }
  }
  if (!table.exists("virtio_mmio") && !table.exists("virtio_pci"))
    throw failure("this kernel cannot run a guest of dsec: it has neither virtio_mmio nor virtio_pci");
  return groups;
}

std::string pack_modules(const std::vector<ModuleGroup>& groups) {
  CpioWriter out;
  for (const char* name : {"bin", "dev", "modules", "new", "proc", "sys"}) out.directory(name);
  // The kernel opens it for the first program before that has mounted anything.
  out.character_device("dev/console", 5, 1);
  std::set<std::string> packed;
  for (const ModuleGroup& group : groups) {
    if (group.files.empty()) continue;
    out.file("modules/" + group.name, names_of(group.files));
    for (const fs::path& file : group.files)
      if (packed.insert(module_name(file)).second)
        out.file("modules/" + module_name(file) + ".ko", read_unpacked(file, kMostModule));
  }
  return out.finish();
}

std::string pack_programs(std::string_view init, std::string_view helper) {
  CpioWriter out;
  out.file("init", init, 0755);
  out.file("bin/dsec-guest", helper, 0755);
  return out.finish();
}

}  // namespace dsec::runners
