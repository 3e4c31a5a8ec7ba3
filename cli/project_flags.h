#pragma once

#include <string>
#include <vector>

namespace dsec::layers {
struct Project;
}

namespace dsec::cli {

class Command;

/// Which dsec.yaml a verb works on.
struct ProjectFlags {
  std::string file = "dsec.yaml";
  std::vector<std::string> args;
};

void declare(Command& command, ProjectFlags& flags);

/// Throws Error (Usage) that lists all problems of the file.
layers::Project load(const ProjectFlags& flags);

}  // namespace dsec::cli
