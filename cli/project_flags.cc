#include "cli/project_flags.h"

#include "cli/command.h"
#include "cli/sandbox_flags.h"
#include "layers/build/project.h"

namespace dsec::cli {

void declare(Command& command, ProjectFlags& flags) {
  command.option("-f,--file", "FILE", flags.file, "The description (default: dsec.yaml)");
  command.options("--arg", "NAME=VALUE", flags.args, "Value of ${NAME} in it");
}

layers::Project load(const ProjectFlags& flags) { return layers::Project::load(flags.file, parse_labels(flags.args)); }

}  // namespace dsec::cli
