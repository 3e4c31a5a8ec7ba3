#pragma once

#include "core/base/error.h"
#include "registry/layout/named_files.h"

namespace dsec::registry {

/// One file that was read already, for readers that take it by its name: what they throw then is about its content.
class TextInHand final : public NamedFiles {
 public:
  explicit TextInHand(std::string text) : text_(std::move(text)) {}
  std::optional<std::string> read_file(const std::string&, std::uint64_t limit, Missing) const override {
    if (text_.size() > limit)
      throw failure("it has " + std::to_string(text_.size()) + " bytes, more than " + std::to_string(limit));
    return text_;
  }
  bool has_file(const std::string&, Missing) const override { return true; }
  std::vector<std::string> names(const std::string&) const override { return {}; }

 private:
  std::string text_;
};

}  // namespace dsec::registry
