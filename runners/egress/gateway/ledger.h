#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec::egress {

/// What a sandbox has used up and which names its addresses stand for, in a file in memory: a process that serves it
/// after the death of another goes on from there.
class Ledger {
 public:
  struct Counters {
    std::uint64_t sent, received, allowed, denied;
    std::uint64_t unlogged;  ///< connections and flows that are open and will be logged
  };

  /// Of `file`, as file() gave it; of nothing: a new one. Throws Error.
  explicit Ledger(UniqueFd file = UniqueFd());
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  int file() const { return file_.get(); }
  Counters& counters() { return *counters_; }
  const Counters& counters() const { return *counters_; }
  /// In the order of their numbers, which begin with 1.
  const std::vector<std::string>& names() const { return names_; }
  /// False when there is no memory for it.
  bool add(const std::string& name);

 private:
  UniqueFd file_;
  Counters* counters_ = nullptr;
  std::vector<std::string> names_;
};

}  // namespace dsec::egress
