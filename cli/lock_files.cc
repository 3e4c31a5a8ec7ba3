#include "cli/lock_files.h"

#include "cli/command.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::cli {

void declare_locks(Command& command, std::vector<std::string>& files, const std::string& help) {
  command.options("--locks", "FILE", files, help);
}

std::vector<Lock> read_locks(const std::vector<std::string>& files) {
  std::vector<Lock> locks;
  for (const std::string& file : files)
    locks.push_back(attempt("cannot read lock " + quote(file), [&] { return Lock::parse(read_file(file), file); }));
  return locks;
}

std::map<Digest, std::string> locked_layers(const std::vector<std::string>& files) {
  std::map<Digest, std::string> layers;
  const std::vector<Lock> locks = read_locks(files);
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const auto& [name, locked] : locks[i].layers) layers.emplace(locked.digest, files[i]);
    for (const auto& [name, stack] : locks[i].environments)
      for (const Digest& layer : stack) layers.emplace(layer, files[i]);
  }
  return layers;
}

}  // namespace dsec::cli
