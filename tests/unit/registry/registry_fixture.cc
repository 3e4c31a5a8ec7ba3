#include "tests/unit/registry/registry_fixture.h"

#include <fstream>

#include "core/base/error.h"

namespace dsec::registry::test {

PublishResult publish_refs(LocalStore& store, const std::vector<std::string>& refs, const RegistryAddress& address) {
  std::vector<LayerRef> parsed;
  for (const std::string& ref : refs) parsed.push_back(named(ref));
  Progress quiet;
  return publish(store, parsed, address, {}, quiet);
}

PullResult pull_ref(LocalStore& store, const std::string& ref, const RegistryAddress& address) {
  Progress quiet;
  return pull(store, named(ref), address, quiet);
}

void overwrite(const fs::path& file, const std::string& content) {
  if (fs::exists(file)) fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
  std::ofstream stream(file, std::ios::trunc);
  stream << content << std::flush;
  if (!stream) throw failure("cannot overwrite " + file.native());
}

}  // namespace dsec::registry::test
