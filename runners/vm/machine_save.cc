#include "runners/vm/machine_save.h"

#include <fcntl.h>

#include <chrono>
#include <optional>
#include <span>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/container/channel.h"
#include "runners/protocol/guest_channel.h"
#include "runners/vm/machine_disk.h"
#include "runners/vm/machine_root.h"
#include "runners/vm/qemu.h"
#include "runners/vm/saved_machine.h"
#include "runners/vm/vmm_socket.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::seconds kMonitorPatience{20};
// Its processes have ten seconds to stand still, and its disk may have much to write.
constexpr std::chrono::seconds kQuiescePatience{60};
constexpr std::chrono::seconds kGoOnPatience{10};

// As long as it lives the guest of a machine stands still. Its keeper lets both go on, whatever ends this.
class Quiescence {
 public:
  Quiescence(const fs::path& directory, int monitor) : keeper_(connect(directory)) {
    keeper_.send(wire::Type::Quiesce, FrameText().str(kGoOn).str(kGoOnMark).text(), std::span<const int>(&monitor, 1));
    const std::optional<Frame> answer = keeper_.receive(kQuiescePatience);
    if (!answer) throw failure("its guest does not stand still in time");
    if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
    wire::Reader reader = answer->reader();
    const auto type = static_cast<channel::Type>(reader.u16());
    if (answer->type == wire::Type::Controlled && type == channel::Type::Done) return;
    const auto error = static_cast<int>(reader.u32());
    const auto step = reader.str(), object = reader.str();
    if (answer->type != wire::Type::Controlled || type != channel::Type::Failed || !reader.ok())
      throw failure("its guest does not stand still");
    throw failure("its guest cannot " + quote(std::string_view(step.data, step.size)) + " " +
                  quote(std::string_view(object.data, object.size)) + (error ? ": " + errno_text(error) : ""));
  }

  // Returns when the keeper has seen to it.
  void end() {
    keeper_.hang_up();
    try {
      (void)keeper_.receive(kGoOnPatience);
    } catch (const KeeperGone&) {
      // It has hung up, too.
    }
  }

 private:
  static Channel connect(const fs::path& directory) {
    std::optional<Channel> keeper = Channel::connect(directory);
    if (!keeper) throw usage_error("its machine does not run");
    return *std::move(keeper);
  }

  Channel keeper_;
};

}  // namespace

void save_running_machine(engine::MachineDisks& disks, const fs::path& directory, const fs::path& into,
                          const fs::path& vmm) {
  SavedSandbox saved = saved_sandbox_in(into);
  saved.record = read_machine_record(directory);
  saved.record.vmm = qemu_version(vmm);
  {
    UniqueFd monitor = connect_to_vmm(directory / kMachineDirectory / "control.sock", kMonitorPatience);
    const UniqueFd for_keeper(::fcntl(monitor.get(), F_DUPFD_CLOEXEC, 0));
    if (!for_keeper) throw system_error("duplicate a descriptor");
    const std::unique_ptr<MachineControl> machine = make_qemu_control(std::move(monitor), kMonitorPatience);
    Quiescence still(directory, for_keeper.get());
    machine->pause();
    machine->save(saved.files);
    // Its guest has written out all that it had, and nothing comes before its memory is saved, too.
    if (MachineDisk disk(disks, directory); disk.exists()) disk.seal(saved.disk);
    still.end();
  }
  saved.record.state_digest = digest_of_file(saved.files.state.native()).str();
  write_machine_record(into, saved.record);
}

}  // namespace dsec::runners
