#include "registry/check.h"

#include <array>

#include "core/base/error.h"
#include "registry/directory/directory_check.h"
#include "registry/web/object_check.h"

namespace dsec::registry {
namespace {

constexpr std::array<std::string_view, 9> kKinds = {"missing",          "truncated",    "altered",
                                                    "unreferenced",     "dangling-tag", "damaged-tag",
                                                    "damaged-manifest", "leftover",     "catalogue"};
}  // namespace

std::string_view to_string(RegistryProblem::Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

CheckResult check_registry(const RegistryAddress& address, const CheckOptions& options, Progress& progress) {
  if (address.kind == RegistryAddress::Kind::Oci)
    throw usage_error("what " + address.shown() + " holds is for the registry itself to check")
        .hint("dsec publish --verify-existing, which reads the blobs of layers that this host has");
  return attempt("cannot check registry " + address.shown(), [&] {
    return address.is_directory() ? check_directory(address, options, progress)
                                  : check_objects(address, options, progress);
  });
}

}  // namespace dsec::registry
