#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace dsec::registry {

/// What a list of names from a server may hold, over all of its pages, so that one that never ends fills no memory.
class ListBudget {
 public:
  /// `who`: whose list it is, for the error.
  explicit ListBudget(std::string who) : who_(std::move(who)) {}

  /// Before the name is kept. Throws Error when it is one too many.
  void take(const std::string& name);

 private:
  static constexpr std::uint64_t kMostNames = 5'000'000;
  static constexpr std::uint64_t kMostBytes = 512 << 20;

  const std::string who_;
  std::uint64_t names_ = 0, bytes_ = 0;
};

}  // namespace dsec::registry
