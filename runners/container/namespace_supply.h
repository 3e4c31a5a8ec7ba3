#pragma once

#include <memory>
#include <mutex>

#include "runners/isolation/id_map.h"

namespace dsec::runners {

/// The user and network namespaces of sandboxes, for as long ahead as KeeperSupply has keepers. They are new to whoever
/// gets them. Thread-safe.
class NamespaceSupply {
 public:
  /// Its network is there or on its way. Throws Error.
  std::unique_ptr<NewUserNamespace> take();
  /// For a sandbox that is about to be made.
  void prepare() noexcept;
  /// For the one after that; its network is made when begin() is called, which keeps a processor busy.
  void refill() noexcept;
  void begin() noexcept;
  void clear();

 private:
  void make(NewUserNamespace::Network network) noexcept;

  std::mutex mutex_;
  bool again_ = false;  ///< refill() was called before
  bool begun_ = false;
  std::unique_ptr<NewUserNamespace> waiting_;
};

}  // namespace dsec::runners
