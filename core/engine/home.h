#pragma once

#include <filesystem>
#include <string>

namespace dsec::engine {

/// DSEC_HOME and the places in it; see man/dsec-home.5.md.
class Home {
 public:
  /// From the environment: DSEC_HOME, else /var/lib/dsec for root, else ~/.local/share/dsec. Makes what is missing,
  /// writes the format file and the host id on first use; refuses a newer format.
  static Home open();
  /// The directory that open() would use; looks at the environment only.
  static std::filesystem::path place();
  static Home open(const std::filesystem::path& root);

  const std::filesystem::path& root() const noexcept { return root_; }
  std::filesystem::path store() const { return root_ / "store"; }
  std::filesystem::path cache() const { return root_ / "cache"; }
  std::filesystem::path run() const { return root_ / "run"; }
  std::filesystem::path sandboxes() const { return root_ / "sandboxes"; }
  /// Made when the first sandbox is recorded.
  std::filesystem::path trajectories() const { return root_ / "trajectories"; }
  /// A symlink per named sandbox, its text the id: a name is taken by making the link.
  std::filesystem::path names() const { return root_ / "names"; }
  /// 6 characters of [a-z2-7], made with the home: the first part of every sandbox id.
  const std::string& host_id() const noexcept { return host_id_; }

 private:
  Home(std::filesystem::path root, std::string host_id) : root_(std::move(root)), host_id_(std::move(host_id)) {}
  std::filesystem::path root_;
  std::string host_id_;
};

}  // namespace dsec::engine
