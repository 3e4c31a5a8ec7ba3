#include "layers/archive/refusal.h"

#include <array>

namespace dsec::layers {
namespace {

constexpr std::array<std::string_view, 15> kWords = {"layer-truncated",
                                                     "layer-damaged",
                                                     "digest-mismatch",
                                                     "size-mismatch",
                                                     "diff-id-mismatch",
                                                     "blob-missing",
                                                     "reference-missing",
                                                     "platform-missing",
                                                     "no-image",
                                                     "path-escapes-root",
                                                     "hardlink-target-missing",
                                                     "entry-not-representable",
                                                     "size-limit",
                                                     "entry-limit",
                                                     "path-limit"};

}  // namespace

std::string_view to_string(Refusal kind) { return kWords.at(static_cast<std::size_t>(kind)); }

Error refusal(Refusal kind, std::string_view what) {
  return failure(std::string(to_string(kind)) + ": " + std::string(what));
}

}  // namespace dsec::layers
