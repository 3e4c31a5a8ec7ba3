#pragma once

#include <string>

namespace dsec::cli {

class Command;

/// A script that completes every command, option and fixed value of the tree, and asks dsec for the names of layers and
/// sandboxes. Shells: bash, zsh, fish; another throws Error (Usage).
std::string completion_script(const std::string& shell, const Command& root);

}  // namespace dsec::cli
