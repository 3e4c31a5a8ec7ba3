#include "runners/vm/full/full_machine.h"

#include <fcntl.h>

#include <initializer_list>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/qcow2_writer.h"
#include "runners/protocol/guest_channel.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

// A comma would begin another option.
std::string escaped(const fs::path& path) {
  std::string out;
  for (const char c : path.native()) out += c == ',' ? ",," : std::string(1, c);
  return out;
}

class Arguments {
 public:
  explicit Arguments(const fs::path& program) : words_{program.native()} {}
  void add(std::initializer_list<std::string> words) { words_.insert(words_.end(), words); }
  void node(const Json& node) { add({"-blockdev", canonical_json(node)}); }
  void socket(const std::string& name, const fs::path& path) {
    add({"-chardev", "socket,id=" + name + ",server=on,wait=off,path=" + escaped(path)});
  }
  std::vector<std::string> take() { return std::move(words_); }

 private:
  std::vector<std::string> words_;
};

// Without "backing" QEMU would open what an image names, which check_disk() has excluded; told here, it is certain.
void add_disk(Arguments& argv, const FullMachine& machine) {
  argv.node({{"driver", "file"},
             {"filename", machine.disk.native()},
             {"node-name", "disk-file"},
             {"read-only", true},
             {"locking", "off"}});
  Json disk{{"driver", machine.format}, {"file", "disk-file"}, {"node-name", "disk"}, {"read-only", true}};
  if (machine.format == "qcow2") disk["backing"] = nullptr;
  argv.node(disk);
  argv.node({{"driver", "file"}, {"filename", machine.top.native()}, {"node-name", "top-file"}, {"discard", "unmap"}});
  argv.node({{"driver", "qcow2"},
             {"file", "top-file"},
             {"node-name", "top"},
             {"backing", "disk"},
             {"discard", "unmap"},
             {"detect-zeroes", "unmap"}});
  argv.add({"-device", "virtio-blk-pci,drive=top,serial=disk,bootindex=1"});
  if (machine.seed.empty()) return;
  argv.node({{"driver", "file"}, {"filename", machine.seed.native()}, {"node-name", "seed-file"}, {"read-only", true}});
  argv.node({{"driver", "raw"}, {"file", "seed-file"}, {"node-name", "seed"}, {"read-only", true}});
  argv.add({"-device", "virtio-blk-pci,drive=seed,serial=seed"});
}

}  // namespace

std::vector<std::string> full_machine_command(const fs::path& qemu, Accelerator accelerator,
                                              const FullMachine& machine) {
  Arguments argv(qemu);
  std::string type = "q35";
  if (machine.uefi) {
    type += ",pflash0=firmware,pflash1=variables";
    argv.node({{"driver", "file"},
               {"filename", machine.uefi->code.native()},
               {"node-name", "firmware-file"},
               {"read-only", true}});
    argv.node({{"driver", "raw"}, {"file", "firmware-file"}, {"node-name", "firmware"}, {"read-only", true}});
    argv.node({{"driver", "file"}, {"filename", machine.uefi->variables.native()}, {"node-name", "variables-file"}});
    argv.node({{"driver", "raw"}, {"file", "variables-file"}, {"node-name", "variables"}});
  }
  // A machine that begins anew would not be the one that its commands ran in.
  argv.add({"-M", type, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"});
  // A whole system is more code to translate than a kernel with one program.
  if (accelerator == Accelerator::Tcg) argv.add({"-accel", "tcg,tb-size=128", "-cpu", "max,-erms,-fsrm"});
  if (accelerator == Accelerator::Kvm) argv.add({"-accel", "kvm", "-cpu", "host"});
  argv.add({"-m", std::to_string(machine.memory >> 20) + "M", "-smp", std::to_string(machine.cpus)});
  argv.add({"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"});
  add_disk(argv, machine);
  argv.socket("channel", machine.channel);
  argv.add({"-device", "virtio-serial-pci", "-device",
            "virtserialport,chardev=channel,name=" + std::string(channel::kPortName)});
  argv.add({"-device", "VGA", "-vnc", "unix:" + escaped(machine.screen)});
  // A pointer that is put at a place, where a mouse would be moved by so much.
  argv.add({"-device", "qemu-xhci,id=usb", "-device", "usb-tablet,bus=usb.0"});
  argv.add({"-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random"});
  argv.add({"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"});
  argv.socket("control", machine.control);
  argv.add({"-mon", "chardev=control,mode=control"});
  return argv.take();
}

void make_disk_top(const fs::path& file, std::uint64_t size) {
  const UniqueFd made = open_file(file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  Qcow2Writer(made.get(), size).finish();
}

FullMachine::Uefi find_uefi() {
  const FullMachine::Uefi found{"/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"};
  if (!fs::exists(found.code) || !fs::exists(found.variables))
    throw failure("there is no UEFI firmware for machines here, " + quote(found.code.native()))
        .hint("apt install ovmf");
  return found;
}

}  // namespace dsec::runners
