#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/model/lock.h"

namespace dsec::cli {

class Command;

/// --locks FILE, any number of times.
void declare_locks(Command& command, std::vector<std::string>& files, const std::string& help);
/// Throws Error naming the file that cannot be read.
std::vector<Lock> read_locks(const std::vector<std::string>& files);
/// The layers that the files name, and one of the files that does.
std::map<Digest, std::string> locked_layers(const std::vector<std::string>& files);

}  // namespace dsec::cli
