#include <fcntl.h>

#include <iostream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/unique_fd.h"
#include "layers/disk/machine_disks.h"

// The disks of machines, for tests that are no C++ programs.

namespace {

using namespace dsec;
using Paths = std::vector<std::filesystem::path>;

int run(const std::string& verb, const Paths& paths) {
  const auto disks = layers::make_machine_disks();
  if (verb == "pack") {
    disks->pack(paths.at(0), paths.at(1));
  } else if (verb == "create") {
    const std::uint64_t size = std::stoull(paths.at(1).native());
    disks->create(paths.at(0), {.below = {}, .layers = Paths(paths.begin() + 2, paths.end()), .size = size});
  } else if (verb == "create-below" || verb == "serve") {
    std::vector<UniqueFd> open;
    std::vector<int> below;
    for (const auto& path : Paths(paths.begin() + 2, paths.end())) {
      open.push_back(open_file(path, O_RDONLY));
      below.push_back(open.back().get());
    }
    if (verb == "serve")
      disks->serve(paths.at(0), {.socket = paths.at(1), .groups = {}, .below = below});
    else
      disks->create(paths.at(0), {.below = below, .layers = {}, .size = std::stoull(paths.at(1).native())});
  } else if (verb == "seal") {
    disks->seal(paths.at(0), paths.at(1));
  } else if (verb == "layers") {
    for (const auto& layer : disks->layers(paths.at(0))) std::cout << layer.native() << '\n';
  } else if (verb == "end") {
    disks->end(paths.at(0));
  } else {
    throw usage_error("unknown verb " + quote(verb));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw usage_error("machine_disk VERB DISK…");
    return run(argv[1], Paths(argv + 2, argv + argc));
  } catch (const Error& error) {
    std::cerr << error.message() << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}
