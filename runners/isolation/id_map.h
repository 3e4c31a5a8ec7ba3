#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// How many user and group ids a sandbox has: 0..65535, as everywhere. Files of a layer with higher ids show the
/// overflow id (nobody) inside.
inline constexpr std::uint32_t kIdCount = 65536;

/// Ids 0..count-1 inside are first..first+count-1 outside; the same for users and groups. {0, 0, 2^32-1} is the host's.
struct IdMap {
  std::uint32_t first = 0;
  std::uint32_t count = kIdCount;

  bool contains_outside(std::uint32_t id) const noexcept { return id >= first && id - first < count; }
  std::uint32_t to_outside(std::uint32_t inside) const noexcept { return first + inside; }
  std::uint32_t to_inside(std::uint32_t outside) const noexcept { return outside - first; }
  /// A line of uid_map and gid_map: "0 268435456 65536\n".
  std::string line() const;
  bool operator==(const IdMap&) const = default;
};

/// Ids that sandboxes may use outside: blocks of kIdCount from `first` on.
struct IdRange {
  std::uint32_t first = 0;
  std::uint32_t blocks = 0;
  bool operator==(const IdRange&) const = default;
};

/// Where no subordinate ids are set aside for us: above those that useradd gives out, below 2^31 (programs that keep
/// ids in signed numbers), and below the foreign range of systemd at 0x7ffe0000.
inline constexpr IdRange kDefaultIdRange{0x10000000, 0x6ffd};

/// The range in the text of /etc/subuid (and subgid, which must agree): of user "dsec", else "containers"; a range that
/// does not hold one block is passed over. kDefaultIdRange without any.
IdRange id_range(std::string_view subuid, std::string_view subgid);
/// The same from this host's files.
IdRange host_id_range();

/// The map of a sandbox: a block chosen by a text of its own. Two sandboxes share a block only by chance, or when the
/// range has few: their files and processes are kept apart by namespaces either way; what they then share is the
/// kernel's per-user quotas.
IdMap id_map_for(std::string_view text, const IdRange& range);

/// A user namespace with this map. Made by a short-lived child that shares our memory and runs a few instructions, so
/// it is cheap in a large process.
class NewUserNamespace {
 public:
  /// With: the child also makes a network namespace that belongs to it, with its loopback up, while the caller goes on.
  /// That takes longer than anything else that a sandbox is made of. Later: not before begin_network().
  enum class Network { Without, With, Later };
  /// Throws Error with a hint when user namespaces are off or used up.
  explicit NewUserNamespace(const IdMap& map, Network network = Network::Without);
  NewUserNamespace(NewUserNamespace&&) noexcept;
  /// Waits for the end of the child.
  ~NewUserNamespace();

  /// For idmap_mount() and setns().
  int fd() const noexcept { return fd_.get(); }
  UniqueFd release() noexcept { return std::move(fd_); }
  const IdMap& map() const noexcept { return map_; }
  void begin_network() noexcept;
  /// The child, which ends with the thread that called the constructor.
  bool maker_lives() const noexcept;
  /// Waits until the network namespace is there; once, and only after Network::With or begin_network(). Throws Error.
  UniqueFd take_network();

  class Child;

 private:
  IdMap map_;
  std::unique_ptr<Child> child_;
  UniqueFd fd_;
};

inline UniqueFd make_user_namespace(const IdMap& map) { return NewUserNamespace(map).release(); }

/// A network namespace with its loopback up, which belongs to the caller's user namespace.
UniqueFd make_network_namespace();

/// Turns a detached mount (open_tree with OPEN_TREE_CLONE, or fsmount) that nobody has seen yet into one that shows its
/// files with ids of the map: what is 0 on disk belongs to map.first through it. On disk ids stay those seen inside, so
/// a writable layer can be packed, compared and started again whatever block it ran with. Throws Error naming `what`.
void idmap_mount(int mount, int user_namespace, std::string_view what);

}  // namespace dsec::runners
