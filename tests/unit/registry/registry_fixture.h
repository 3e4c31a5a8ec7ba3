#pragma once

#include <string>
#include <vector>

#include "registry/publish.h"
#include "registry/pull.h"
#include "tests/unit/registry/fixture.h"

namespace dsec::registry::test {

PublishResult publish_refs(LocalStore& store, const std::vector<std::string>& refs, const RegistryAddress& address);
PullResult pull_ref(LocalStore& store, const std::string& ref, const RegistryAddress& address);
/// Replaces the content of a read-only file.
void overwrite(const fs::path& file, const std::string& content);

}  // namespace dsec::registry::test
