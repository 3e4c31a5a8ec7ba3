#include "runners/vm/qemu.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"

namespace dsec::runners {
namespace {

MachineSpec machine() {
  MachineSpec spec;
  spec.kernel = "/boot/vmlinuz";
  spec.initramfs = "/boot/initramfs";
  spec.command_line = "console=ttyS0, quiet";
  spec.drives = {{.id = "layer0m", .file = "/layers/a,b.erofs"},
                 {.id = "disk", .file = "/disk.img", .read_only = false}};
  spec.channel = "/m/channel,1";
  spec.control = "/m/control";
  return spec;
}

std::vector<std::string> values_of(const std::vector<std::string>& argv, const std::string& flag) {
  std::vector<std::string> found;
  for (std::size_t i = 0; i + 1 < argv.size(); ++i)
    if (argv[i] == flag) found.push_back(argv[i + 1]);
  return found;
}

bool has(const std::vector<std::string>& argv, const std::string& word) {
  return std::find(argv.begin(), argv.end(), word) != argv.end();
}

}  // namespace

TEST_CASE("QEMU gets no device, setting or privilege that was not asked for", "[runners][qemu]") {
  const auto argv = make_qemu("/usr/bin/qemu-system-x86_64", Accelerator::Tcg)->command(machine());
  CHECK(argv[0] == "/usr/bin/qemu-system-x86_64");
  for (const char* flag : {"-nodefaults", "-no-user-config", "-no-reboot"}) CHECK(has(argv, flag));
  CHECK(values_of(argv, "-sandbox") ==
        std::vector<std::string>{"on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"});
  CHECK(values_of(argv, "-M") == std::vector<std::string>{"microvm,acpi=on"});
  CHECK(values_of(argv, "-netdev").empty());
  CHECK(values_of(argv, "-display") == std::vector<std::string>{"none"});
}

TEST_CASE("a comma in a path begins no option of QEMU's", "[runners][qemu]") {
  const auto argv = make_qemu("/qemu", Accelerator::Tcg)->command(machine());
  CHECK(has(argv, "socket,id=channel,server=on,wait=off,path=/m/channel,,1"));
  const auto nodes = values_of(argv, "-blockdev");
  REQUIRE(nodes.size() == 4);
  CHECK(parse_json(nodes[0], "node")["filename"] == "/layers/a,b.erofs");
}

TEST_CASE("layers are read-only drives, and the disk gives back what is deleted", "[runners][qemu]") {
  const auto nodes = values_of(make_qemu("/qemu", Accelerator::Tcg)->command(machine()), "-blockdev");
  for (std::size_t i = 0; i < 2; ++i) CHECK(parse_json(nodes[i], "node")["read-only"] == true);
  CHECK(parse_json(nodes[3], "node")["read-only"] == false);
  CHECK(parse_json(nodes[3], "node")["discard"] == "unmap");
}

TEST_CASE("a disk that is served by NBD is waited for when its server is replaced", "[runners][qemu]") {
  MachineSpec spec = machine();
  spec.drives[1] = {.id = "disk", .file = {}, .nbd = "/machine/disk.sock", .read_only = false};
  const auto argv = make_qemu("/qemu", Accelerator::Tcg)->command(spec);
  const auto nodes = values_of(argv, "-blockdev");
  REQUIRE(nodes.size() == 3);
  CHECK(parse_json(nodes[2], "node") == Json{{"driver", "nbd"},
                                             {"node-name", "disk"},
                                             {"server", {{"type", "unix"}, {"path", "/machine/disk.sock"}}},
                                             {"reconnect-delay", 60},
                                             {"read-only", false},
                                             {"discard", "unmap"},
                                             {"detect-zeroes", "unmap"}});
  CHECK(has(argv, "virtio-blk-device,drive=disk,serial=disk"));
}

TEST_CASE("a drive with a rate goes through a throttle", "[runners][qemu]") {
  MachineSpec spec = machine();
  spec.drives[1].rate = {.bytes = 1 << 20, .operations = 100};
  const auto argv = make_qemu("/qemu", Accelerator::Kvm)->command(spec);
  CHECK(has(argv, "throttle-group,id=rate-disk,x-bps-total=1048576,x-iops-total=100"));
  CHECK(has(argv, "virtio-blk-device,drive=slow-disk,serial=disk"));
  CHECK(values_of(argv, "-accel") == std::vector<std::string>{"kvm"});
}

TEST_CASE("a place for a drive has nothing in it, and a machine that goes on waits for its memory", "[runners][qemu]") {
  MachineSpec spec = machine();
  CHECK(values_of(make_qemu("/qemu", Accelerator::Tcg)->command(spec), "-incoming").empty());
  spec.drives.push_back({.id = "none2", .file = {}});
  spec.restores = true;
  const auto argv = make_qemu("/qemu", Accelerator::Tcg)->command(spec);
  const Json node = parse_json(values_of(argv, "-blockdev").back(), "node");
  CHECK(node["driver"] == "null-co");
  CHECK(node["size"] == 0);
  CHECK(has(argv, "virtio-blk-device,drive=none2,serial=none2"));
  CHECK(values_of(argv, "-incoming") == std::vector<std::string>{"defer"});
}

TEST_CASE("layers that are memory of the guest are mapped read-only, in a machine that has room for them",
          "[runners][qemu]") {
  MachineSpec spec = machine();
  spec.has_pmem_room = true;
  const auto without = make_qemu("/qemu", Accelerator::Tcg)->command(spec);
  spec.pmem = {{.id = "l0m", .file = "/drives/l0,m", .size = 2 << 20},
               {.id = "l0d", .file = "/drives/l0d", .size = 4 << 20}};
  const auto argv = make_qemu("/qemu", Accelerator::Tcg)->command(spec);
  CHECK(values_of(argv, "-M")[0].starts_with("q35,"));
  CHECK(values_of(argv, "-m") == std::vector<std::string>{"512M,maxmem=262656M"});
  const Json memory = parse_json(values_of(argv, "-object")[1], "object");
  CHECK(memory["mem-path"] == "/drives/l0,m");
  CHECK(memory["size"] == 2 << 20);
  CHECK(memory["readonly"] == true);
  CHECK(memory["share"] == true);
  CHECK(has(argv, "virtio-pmem-pci,id=l0d,memdev=memory-l0d,multifunction=on,addr=19.1"));
  // Of a machine that goes on from one without them all else is the same.
  REQUIRE(argv.size() > without.size());
  std::size_t same = 0;
  for (const std::string& word : argv) same += same < without.size() && word == without[same];
  CHECK(same == without.size());
  for (const std::string& word : argv)
    CHECK_FALSE((word.starts_with("virtio-") && word.find("-device") != std::string::npos));
}

TEST_CASE("memory that a guest's kernel could not describe is refused", "[runners][qemu]") {
  const auto qemu = make_qemu("/qemu", Accelerator::Tcg);
  MachineSpec spec = machine();
  spec.has_pmem_room = true;
  spec.pmem = {{.id = "p0", .file = "/x", .size = (2 << 20) + 4096}};
  CHECK_THROWS_WITH(qemu->check(spec), Catch::Contains("no multiple of 2 MiB"));
  spec.pmem[0].size = (256ull << 30) + (2 << 20);
  CHECK_THROWS_WITH(qemu->check(spec), Catch::Contains("has room for"));
}

TEST_CASE("memory that was saved is mapped privately", "[runners][qemu]") {
  MachineSpec spec = machine();
  CHECK(values_of(make_qemu("/qemu", Accelerator::Tcg)->command(spec), "-object").size() == 1);
  spec.saved_memory = "/guest/memory";
  const auto argv = make_qemu("/qemu", Accelerator::Tcg)->command(spec);
  CHECK(values_of(argv, "-M") == std::vector<std::string>{"microvm,acpi=on,memory-backend=microvm.ram"});
  CHECK(has(argv, "memory-backend-file,id=microvm.ram,size=536870912,share=off,mem-path=/guest/memory"));
  spec.has_pmem_room = true;
  const auto with_room = make_qemu("/qemu", Accelerator::Tcg)->command(spec);
  CHECK(values_of(with_room, "-M")[0].ends_with(",memory-backend=pc.ram"));
  CHECK(has(with_room, "memory-backend-file,id=pc.ram,size=536870912,share=off,mem-path=/guest/memory"));
}

TEST_CASE("what QEMU's microvm cannot have is refused by name", "[runners][qemu]") {
  const auto qemu = make_qemu("/qemu", Accelerator::Tcg);
  MachineSpec spec = machine();
  spec.pmem = {{.id = "p0", .file = "/layers/a"}};
  CHECK_THROWS_WITH(qemu->check(spec), "QEMU's microvm has no persistent memory");
  spec = machine();
  for (int i = 0; i < 20; ++i) spec.drives.push_back({.id = "d" + std::to_string(i), .file = "/x"});
  CHECK_THROWS_WITH(qemu->check(spec), Catch::Contains("22 files"));
  spec = machine();
  spec.drives[1].id = spec.drives[0].id;
  CHECK_THROWS_WITH(qemu->check(spec), Catch::Contains("two devices"));
  spec.drives[1].id = "a,b";
  CHECK_THROWS_WITH(qemu->check(spec), Catch::Contains("no name"));
  spec = machine();
  spec.memory = 1 << 20;
  CHECK_THROWS_WITH(qemu->check(spec), Catch::Contains("cannot begin"));
  spec.memory = (128u << 20) + 1;
  CHECK_THROWS_WITH(qemu->check(spec), Catch::Contains("multiple of 1 MiB"));
  spec = machine();
  spec.command_line.assign(4000, 'x');
  CHECK_THROWS_WITH(qemu->check(spec), Catch::Contains("4000 bytes"));
}

}  // namespace dsec::runners
