#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "layers/build/schema.h"

namespace dsec::cli {

void add_env_schema(Command& env) {
  Command& verb = env.verb("schema", "Print the JSON Schema of dsec.yaml, for editors");
  verb.example("dsec env schema > dsec.schema.json");
  verb.runs([](Invocation& call) { call.out().json(layers::project_json_schema()); });
}

}  // namespace dsec::cli
