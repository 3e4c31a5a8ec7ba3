#pragma once

namespace dsec::cli {

class Command;

// One function for each verb, in a file of its name below commands/; commands.cc has them in the order of help.
void add_run(Command& root);
void add_create(Command& root);
void add_exec(Command& root);
void add_shell(Command& root);
void add_attach(Command& root);
void add_ps(Command& root);
void add_inspect(Command& root);
void add_logs(Command& root);
void add_diff(Command& root);
void add_stats(Command& root);
void add_stop(Command& root);
void add_rm(Command& root);
void add_wait(Command& root);
void add_completion(Command& root);
void add_version(Command& root);

}  // namespace dsec::cli
