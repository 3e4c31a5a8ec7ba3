#pragma once

namespace dsec::cli {

class Command;

// One function for each verb, in a file of its name below commands/; commands.cc has them in the order of help.
void add_completion(Command& root);
void add_version(Command& root);

}  // namespace dsec::cli
