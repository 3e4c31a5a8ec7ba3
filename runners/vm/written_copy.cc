#include "runners/vm/written_copy.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <memory>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/container/channel.h"
#include "runners/vm/machine_streams.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::seconds kFreezePatience{30};
// A guest that says nothing for so long is not going to.
constexpr timeval kSilence{60, 0};

// What runs in the guest stands still as long as this lives, and goes on when it or its process is gone.
class GuestHold {
 public:
  explicit GuestHold(const fs::path& directory)
      : stream_(directory, channel::Service::Keeper, FrameText()), keeper_(stream_.release()) {
    keeper_.send(wire::Type::Hold, {});
    const std::optional<Frame> answer = keeper_.receive(kFreezePatience);
    if (!answer) throw failure("its guest does not stand still in time");
    if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
    if (answer->type != wire::Type::Done) throw failure("the keeper of its guest broke the protocol");
  }

 private:
  MachineStream stream_;
  Channel keeper_;
};

void receive(MachineStream& stream, int into, std::uint64_t most) {
  const UniqueFd bytes = stream.release();
  if (::setsockopt(bytes.get(), SOL_SOCKET, SO_RCVTIMEO, &kSilence, sizeof kSilence) != 0)
    throw system_error("wait for the guest");
  try {
    unpack_written(into, bytes.get(), most);
  } catch (const Error&) {
    // Where its end has come too early the guest knows why.
    char more = 0;
    if (::recv(bytes.get(), &more, 1, MSG_PEEK | MSG_DONTWAIT) == 0) stream.finish();
    throw;
  }
  // Padding may follow the end of the archive.
  std::string rest(65536, '\0');
  std::uint64_t left = most;
  for (ssize_t got = 0; (got = ::recv(bytes.get(), rest.data(), rest.size(), 0)) > 0;) {
    if (left < static_cast<std::uint64_t>(got)) throw failure("the guest sends more than its disk has room for");
    left -= static_cast<std::uint64_t>(got);
  }
  stream.finish();
}

UniqueFd open_tree(const fs::path& place, const char* name) { return open_file(place / name, O_RDONLY | O_DIRECTORY); }

}  // namespace

engine::WrittenCopy copy_written_layer(const fs::path& directory, Below below, std::uint64_t most) {
  return attempt("cannot copy what the guest has written", [&] {
    // Of a process that is killed gc removes it.
    auto files = std::make_shared<TempDirectory>(directory);
    const UniqueFd into = open_tree(files->path(), ".");
    {
      const GuestHold hold(directory);
      MachineStream stream(directory, channel::Service::Written, FrameText().u32(below == Below::Included ? 1u : 0u));
      receive(stream, into.get(), most);
    }
    engine::WrittenCopy copy;
    copy.upper = open_tree(files->path(), kWrittenUpper);
    if (below == Below::Included) copy.lower = open_tree(files->path(), kWrittenLower);
    copy.files = std::move(files);
    return copy;
  });
}

}  // namespace dsec::runners
