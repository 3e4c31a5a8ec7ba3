#include "registry/check.h"

#include <array>

#include "core/base/error.h"
#include "registry/directory/directory_check.h"
#include "registry/layout/layout.h"
#include "registry/oci/oci_check.h"
#include "registry/registry.h"
#include "registry/web/object_check.h"

namespace dsec::registry {
namespace {

constexpr std::array<std::string_view, 9> kKinds = {"missing",          "truncated",    "altered",
                                                    "unreferenced",     "dangling-tag", "damaged-tag",
                                                    "damaged-manifest", "leftover",     "catalogue"};

void check_pinned(const RegistryAddress& address, const CheckOptions& options, Progress& progress,
                  CheckResult& result) {
  if (options.pinned.empty()) return;
  const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Read, progress);
  for (const auto& [layer, by] : options.pinned)
    if (!registry->resolve(LayerRef::of(layer)))
      result.problems.push_back(
          {RegistryProblem::Kind::Missing, manifest_name(layer), "is named by " + by + ", and is not there"});
}

}  // namespace

std::string_view to_string(RegistryProblem::Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

CheckResult check_registry(const RegistryAddress& address, const CheckOptions& options, Progress& progress) {
  return attempt("cannot check registry " + address.shown(), [&] {
    CheckResult result = address.is_directory()                       ? check_directory(address, options, progress)
                         : address.kind == RegistryAddress::Kind::Oci ? check_oci(address, options, progress)
                                                                      : check_objects(address, options, progress);
    check_pinned(address, options, progress, result);
    return result;
  });
}

}  // namespace dsec::registry
