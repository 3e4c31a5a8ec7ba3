#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsec::cli {

class Command;
class Wiring;

/// Runs one command line (without the program's name) and returns the exit code. Nothing is thrown.
int run(const std::vector<std::string>& args, Wiring& wiring);

/// Every command there is, in the order of help; or the one that `only` names, when there is one: declaring all takes
/// longer than most commands do.
void declare_commands(Command& root, std::string_view only = {});

}  // namespace dsec::cli
