#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/isolation/disk_image.h"
#include "runners/isolation/project_quota.h"
#include "runners/isolation/writable_layer.h"
#include "tests/support/skip.h"

using namespace dsec;
using namespace dsec::runners;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

/// Writes until the filesystem refuses; how much went in, and why it ended.
std::pair<std::uint64_t, int> fill(int directory, const std::string& name, std::uint64_t most) {
  const UniqueFd file(::openat(directory, name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  if (!file) return {0, errno};
  const std::string block(64 << 10, 'x');
  std::uint64_t written = 0;
  while (written < most) {
    const ssize_t put = ::write(file.get(), block.data(), block.size());
    if (put <= 0) return {written, errno};
    written += static_cast<std::uint64_t>(put);
  }
  // What was promised is not lost when it reaches the disk.
  return {written, ::fsync(file.get()) == 0 ? 0 : errno};
}

std::size_t loops_of(const std::filesystem::path& image) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/block")) {
    std::ifstream file(entry.path() / "loop/backing_file");
    std::string backing;
    if (std::getline(file, backing) && backing.rfind(image.string(), 0) == 0) ++found;
  }
  return found;
}

template <typename Check>
bool soon(Check check) {
  for (int i = 0; i < 200; ++i) {
    if (check()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

/// Quotas do not bind who has CAP_SYS_RESOURCE.
void drop_sys_resource() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  REQUIRE(::syscall(SYS_capget, &header, data) == 0);
  data[0].effective &= ~(1u << CAP_SYS_RESOURCE);
  REQUIRE(::syscall(SYS_capset, &header, data) == 0);
}

}  // namespace

TEST_CASE("a writable layer without a limit is two directories", "[disk]") {
  const TempDirectory sandbox(std::filesystem::temp_directory_path());
  {
    const UniqueFd layer = open_writable_layer(sandbox.path(), std::nullopt, LayerUse::Run);
    CHECK(fill(layer.get(), "upper/file", kMiB).second == 0);
  }
  CHECK(std::filesystem::exists(sandbox.path() / "upper/file"));
  CHECK(writable_layer_bytes(sandbox.path()) >= kMiB);
  const UniqueFd look = open_writable_layer(sandbox.path(), std::nullopt, LayerUse::Look);
  CHECK(::openat(look.get(), "upper/more", O_CREAT | O_WRONLY | O_CLOEXEC, 0644) < 0);
  CHECK(errno == EROFS);
  release_writable_layer(sandbox.path());
}

TEST_CASE("a limited layer is full at its limit, and its loop device goes with the last mount", "[disk]") {
  const TempDirectory sandbox(std::filesystem::temp_directory_path());
  if (enforces_project_quotas(sandbox.path())) BELONGS_TO_LANE("sandbox", "the temporary directory has project quotas");
  check_disk_limit(sandbox.path(), 32 * kMiB);
  const auto image = sandbox.path() / "disk.img";
  {
    const UniqueFd layer = open_writable_layer(sandbox.path(), 32 * kMiB, LayerUse::Run);
    struct stat info {};
    REQUIRE(::stat(image.c_str(), &info) == 0);
    CHECK(info.st_size == static_cast<off_t>(32 * kMiB));
    CHECK(static_cast<std::uint64_t>(info.st_blocks) * 512 < 4 * kMiB);
    CHECK((info.st_mode & 0777) == 0600);

    // While it runs, others look at the same filesystem through the same device.
    const UniqueFd look = open_writable_layer(sandbox.path(), 32 * kMiB, LayerUse::Look);
    CHECK(loops_of(image) == 1);
    const auto [written, reason] = fill(layer.get(), "upper/big", 64 * kMiB);
    CHECK(reason == ENOSPC);
    CHECK(written > 20 * kMiB);
    CHECK(written < 32 * kMiB);
    CHECK(::faccessat(look.get(), "upper/big", F_OK, 0) == 0);
    CHECK(::unlinkat(look.get(), "upper/big", 0) != 0);
    CHECK(writable_layer_bytes(sandbox.path()) > 20 * kMiB);
    CHECK(::unlinkat(layer.get(), "upper/big", 0) == 0);
    CHECK(fill(layer.get(), "upper/kept", kMiB).second == 0);
  }
  CHECK(soon([&] { return loops_of(image) == 0; }));
  {
    const UniqueFd again = open_writable_layer(sandbox.path(), 32 * kMiB, LayerUse::Run);
    CHECK(::faccessat(again.get(), "upper/kept", F_OK, 0) == 0);
  }
  CHECK(soon([&] { return loops_of(image) == 0; }));
}

TEST_CASE("a limit that is too small is refused", "[disk]") {
  const TempDirectory sandbox(std::filesystem::temp_directory_path());
  CHECK_THROWS_AS(check_disk_limit(sandbox.path(), 1000), Error);
}

TEST_CASE("a project quota of ext4 binds the layer, and is taken away with it", "[disk]") {
  const TempDirectory work(std::filesystem::temp_directory_path());
  if (!enforces_project_quotas(work.path())) BELONGS_TO_LANE("guest", "the temporary directory has no project quotas");
  const auto sandbox = work.path() / "sandbox";
  std::filesystem::create_directory(sandbox);
  std::thread([&] {
    drop_sys_resource();
    const UniqueFd layer = open_writable_layer(sandbox, 16 * kMiB, LayerUse::Run);
    const auto [written, reason] = fill(layer.get(), "upper/big", 64 * kMiB);
    CHECK(reason == EDQUOT);
    CHECK(written <= 16 * kMiB);
    CHECK(written > 14 * kMiB);
  }).join();
  CHECK_FALSE(std::filesystem::exists(sandbox / "disk.img"));
  CHECK(writable_layer_bytes(sandbox) > 14 * kMiB);
  release_writable_layer(sandbox);
  release_writable_layer(sandbox);
  CHECK(fill(open_file(sandbox / "upper", O_RDONLY | O_DIRECTORY).get(), "more", 32 * kMiB).second == 0);
}
