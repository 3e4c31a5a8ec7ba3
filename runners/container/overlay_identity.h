#pragma once

#include <linux/capability.h>

#include <cstdint>

namespace dsec::runners {

/// The calling thread, while this lives, as whom an overlay should act: it acts with the identity that made it. On
/// id-mapped layers that is the owner of the sandbox's ids, since ours does not exist there and could create nothing;
/// and in any case without CAP_SYS_RESOURCE, which would let the sandbox write beyond quotas and into reserved blocks.
class OverlayIdentity {
 public:
  /// `id`: the first of the sandbox's ids outside; 0 without id maps. Throws Error.
  explicit OverlayIdentity(std::uint32_t id);
  ~OverlayIdentity();
  OverlayIdentity(const OverlayIdentity&) = delete;
  OverlayIdentity& operator=(const OverlayIdentity&) = delete;

 private:
  void restore() noexcept;
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

}  // namespace dsec::runners
