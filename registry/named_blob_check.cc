#include "registry/named_blob_check.h"

#include <string>

#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/layout/layout.h"

namespace dsec::registry {

void check_named_blob(const Blob& blob, std::optional<std::uint64_t> size, const ReadWhole& read, CheckResult& result,
                      Progress& progress) {
  using Kind = RegistryProblem::Kind;
  const auto problem = [&](Kind kind, std::string what) {
    result.problems.push_back({kind, blob_name(blob.digest), std::move(what)});
  };
  ++result.blobs;
  if (!size)
    return problem(Kind::Missing, "is named by a manifest and should have " + std::to_string(blob.size) + " bytes");
  if (*size != blob.size)
    return problem(*size < blob.size ? Kind::Truncated : Kind::Altered,
                   "has " + std::to_string(*size) + " bytes instead of " + std::to_string(blob.size));
  if (!read) return;
  const std::string step = "check " + blob.digest.brief();
  progress.begin(step);
  try {
    const Digest found = read([&](std::uint64_t done) { progress.advance(step, done, blob.size); });
    result.bytes += blob.size;
    progress.end(step, found == blob.digest ? format_size(blob.size) : "bad");
    if (found != blob.digest) problem(Kind::Altered, "has other bytes: " + found.str());
  } catch (const Error&) {
    progress.end(step, "not read");
    throw;
  }
}

}  // namespace dsec::registry
