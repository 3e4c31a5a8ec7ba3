#pragma once

#include <string>
#include <vector>

namespace dsec::cli {

class Command;
class Wiring;

/// Runs one command line (without the program's name) and returns the exit code. Nothing is thrown.
int run(const std::vector<std::string>& args, Wiring& wiring);

/// Every command there is, in the order of help.
void declare_commands(Command& root);

}  // namespace dsec::cli
