#pragma once

#include <string_view>

#include "core/base/digest.h"
#include "layers/source.h"

namespace dsec::layers {

/// A digest of everything that a source sends: two trees have the same one exactly when they make the same layer.
class TreeDigest : public TreeSink {
 public:
  void entry(const Entry& entry) override;
  void data(std::string_view bytes) override { sum_.update(bytes); }
  Digest finish() { return sum_.finish(); }

 private:
  Sha256 sum_;
};

}  // namespace dsec::layers
