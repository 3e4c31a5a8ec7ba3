#include "core/base/version.h"

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"

namespace dsec::cli {

void add_version(Command& root) {
  root.verb("version", "Show the version of dsec").runs([](Invocation& call) {
    if (call.out().json()) return call.out().json({{"version", kVersion}});
    call.out().line(std::string("dsec ") + kVersion);
  });
}

}  // namespace dsec::cli
