#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/vm_kernel_json.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {

void run(Invocation& call) {
  const std::vector<runners::GuestKernel> kernels = runners::list_kernels(call.wiring().home().root());
  if (call.out().json()) {
    for (const runners::GuestKernel& kernel : kernels) call.out().json_line(kernel_json(kernel));
    return;
  }
  Table table({"NAME", "RELEASE", "IMPORTED", "FOR", "SOURCE"});
  for (const runners::GuestKernel& kernel : kernels)
    table.row({kernel.name, printable(kernel.release),
               age(std::chrono::system_clock::time_point(std::chrono::seconds(kernel.imported))),
               kernel.vmlinux.empty() ? "qemu" : "qemu, firecracker", printable(kernel.source)});
  call.out().table(table);
}

}  // namespace

void add_vm_kernel_ls(Command& group) {
  Command& verb = group.verb("ls", "List the kernels that guests can be started with");
  verb.note("A guest gets the one that was imported last unless it asks for another. With -o json, one object a line.");
  verb.runs(run);
}

}  // namespace dsec::cli
