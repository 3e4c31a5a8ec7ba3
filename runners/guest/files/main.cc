#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/resident.h"
#include "core/engine/file_watch.h"
#include "runners/container/file_watch.h"
#include "runners/container/files.h"
#include "runners/container/written_tar.h"
#include "runners/egress/namespace.h"
#include "runners/guest/files/records.h"

// dsec-guest: what the agent of a virtual machine starts to look at the sandbox's files, with the code that does it for
// containers on a host. Descriptors: 0 and 1 the stream, 2 the reason of a failure, 3 the sandbox's root; for what is
// written 3 is the upper directory and 4 what lies below it; for its way out 3 is its network namespace.

namespace dsec::guest_files {
namespace {

constexpr int kRoot = 3, kNetwork = 3, kLower = 4, kStream = 1;

const runners::SandboxFiles kFiles{kRoot, runners::kUnmappedIds};

std::optional<std::uint32_t> owner_of(std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::uint32_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size()) throw usage_error("the owner is no number");
  return id;
}

void copy_out(std::span<char*> arguments) {
  runners::copy_out(kFiles, arguments[0], kStream, {.name = arguments[1], .owner = owner_of(arguments[2])});
}

void copy_in(std::span<char*> arguments) {
  runners::copy_in(kFiles, arguments[0], STDIN_FILENO, {.name = arguments[1], .owner = owner_of(arguments[2])});
}

void diff(std::span<char*>) {
  std::string records;
  for (const engine::Change& change : runners::diff_layer(kRoot, kLower)) append_record(records, change);
  write_all(kStream, records);
}

void written(std::span<char*> arguments) {
  const bool below = std::string_view(arguments[0]) == "1";
  runners::write_written(kRoot, kLower, below ? runners::Below::Included : runners::Below::Left, kStream);
}

void watch(std::span<char*> arguments) {
  UniqueFd init = open_file(arguments[2], O_RDONLY | O_DIRECTORY);
  const auto events = runners::watch_files(std::move(init), arguments[1], std::string_view(arguments[0]) == "1");
  // So that who waits for the first event knows that it will be told.
  std::string record;
  append_ready(record);
  for (;;) {
    write_all(kStream, record);
    const std::optional<engine::FileEvent> event = events->next();
    if (!event) continue;
    record.clear();
    append_record(record, *event);
    if (event->kind == engine::FileEvent::Kind::Ended) return write_all(kStream, record);
  }
}

// The agent takes the gateway's place.
void egress(std::span<char*>) {
  const runners::EgressSockets sockets = runners::open_egress(kNetwork);
  send_message(kStream, ".", {sockets.tcp.get(), sockets.udp.get(), sockets.raw4.get(), sockets.raw6.get()});
}

struct Role {
  std::string_view name;
  std::size_t arguments;
  void (*run)(std::span<char*> arguments);
};
constexpr Role kRoles[] = {{"copy-out", 3, copy_out}, {"copy-in", 3, copy_in}, {"diff", 0, diff},
                           {"written", 1, written},   {"watch", 3, watch},     {"egress", 0, egress}};

int run(std::span<char*> arguments) {
  if (arguments.size() < 2) throw usage_error("dsec-guest is started by the agent of a virtual machine");
  for (const Role& role : kRoles) {
    if (role.name != arguments[1] || arguments.size() != role.arguments + 2) continue;
    role.run(arguments.subspan(2));
    return 0;
  }
  throw usage_error("there is no such role");
}

}  // namespace
}  // namespace dsec::guest_files

int main(int count, char** arguments) {
  std::string said;
  try {
    // Whoever is gone has no use for the rest.
    ::signal(SIGPIPE, SIG_DFL);
    return dsec::guest_files::run({arguments, static_cast<std::size_t>(count)});
  } catch (const dsec::Error& error) {
    for (const std::string& line : error.chain()) said += said.empty() ? line : '\n' + line;
  } catch (const std::exception& error) {
    said = error.what();
  }
  (void)!::write(STDERR_FILENO, said.data(), said.size());
  return 1;
}
