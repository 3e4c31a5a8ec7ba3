#pragma once

#include <unistd.h>

#include <mutex>
#include <string>
#include <vector>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/progress.h"
#include "registry/publish.h"
#include "registry/registry_url.h"
#include "registry/store/local_store.h"
#include "tests/support/fake_three_fs.h"

namespace dsec::registry::test {

inline bool has_fuse() {
  if (::geteuid() != 0) return false;
  if (::access("/dev/fuse", F_OK) != 0) {
    // A module on many hosts, which makes the device when it is loaded.
    try {
      run_command({.argv = {"modprobe", "fuse"}});
    } catch (const Error&) {
      return false;
    }
  }
  return ::access("/dev/fuse", R_OK | W_OK) == 0;
}

/// What work warned of.
class Warnings : public Progress {
 public:
  void warn(std::string_view message) override {
    const std::lock_guard lock(mutex_);
    text_ += std::string(message) + "\n";
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// A home with layers, and a fake 3FS to publish them to.
struct Cluster {
  TempDirectory directory{std::filesystem::temp_directory_path()};
  engine::Home home = engine::Home::open(directory.path() / "home");
  LocalStore store{home};
  std::filesystem::path mount_point = [this] {
    const std::filesystem::path path = directory.path() / "3fs";
    std::filesystem::create_directory(path);
    return path;
  }();
  dsec::test::FakeThreeFs three_fs{mount_point};
  RegistryAddress address = RegistryAddress::parse("3fs://" + (mount_point / "layers").native());
  Warnings warnings;

  void put(const std::string& name, const std::string& content) {
    const auto session = store.begin_session();
    LayerManifest manifest{LayerName::parse(name), "linux/amd64", {}, {}, {}, {}};
    LayerImage image;
    for (const auto& [role, bytes] :
         {std::pair(BlobRole::Meta, "meta of " + name), std::pair(BlobRole::Data, content)}) {
      TempFile file = session->new_file();
      write_all(file.fd(), bytes);
      image.blobs.push_back(session->adopt(std::move(file), role));
    }
    manifest.images.push_back(image);
    store.add(manifest, "1", engine::Trust::BuiltHere, *session);
  }

  PublishResult publish_to(const RegistryAddress& to, std::vector<LayerRef> refs) {
    return publish(store, refs, to, {}, warnings);
  }
  PublishResult publish_all(const RegistryAddress& to) {
    return publish_to(to, {LayerRef::parse("base/x:1"), LayerRef::parse("base/y:1")});
  }
  std::string refusal() {
    try {
      publish_all(address);
      return "accepted";
    } catch (const Error& error) {
      return error.message();
    }
  }
};

}  // namespace dsec::registry::test
