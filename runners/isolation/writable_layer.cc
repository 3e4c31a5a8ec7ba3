#include "runners/isolation/writable_layer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <charconv>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "core/base/units.h"
#include "runners/isolation/disk_image.h"
#include "runners/isolation/project_quota.h"
#include "runners/isolation/tree_size.h"

namespace dsec::runners {
namespace {

namespace fs = std::filesystem;

/// Less holds no useful ext4.
constexpr std::uint64_t kSmallestLimit = 4ull << 20;

fs::path image_of(const fs::path& sandbox) { return sandbox / "disk.img"; }
fs::path project_file_of(const fs::path& sandbox) { return sandbox / "project"; }

std::optional<std::uint32_t> recorded_project(const fs::path& sandbox) {
  if (!fs::exists(project_file_of(sandbox))) return std::nullopt;
  const std::string text = read_file(project_file_of(sandbox), 64);
  std::uint32_t project = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), project);
  if (error != std::errc{} || project == 0 || end == text.data())
    throw failure(quote(project_file_of(sandbox).string()) + " holds no project");
  return project;
}

/// A project that nobody uses; hashed from the sandbox's name, so that two makers hardly meet.
std::uint32_t free_project(const fs::path& sandbox) {
  constexpr std::uint32_t kFirst = 0x20000000, kCount = 0x10000000;
  std::uint32_t hash = 2166136261u;
  for (const char c : sandbox.filename().string()) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  for (std::uint32_t tries = 0; tries < 64; ++tries) {
    const std::uint32_t project = kFirst + (hash + tries) % kCount;
    const ProjectUse use = project_use(sandbox, project);
    if (use.bytes == 0 && use.limit == 0) return project;
  }
  throw failure("no free project for the quota of the sandbox");
}

void make_directories_in(int root) {
  if (::mkdirat(root, "upper", 0755) != 0 && errno != EEXIST) throw system_error("make the directory 'upper'");
  if (::mkdirat(root, "work", 0700) != 0 && errno != EEXIST) throw system_error("make the directory 'work'");
}

void make_with_quota(const fs::path& sandbox, std::uint64_t limit) {
  const std::uint32_t project = free_project(sandbox);
  // The record first: whoever finds it takes the quota away again.
  write_file_atomic(project_file_of(sandbox), std::to_string(project) + '\n', 0600);
  limit_project(sandbox, project, limit);
  make_directories_in(open_file(sandbox, O_RDONLY | O_DIRECTORY).get());
  join_project(sandbox / "upper", project);
  join_project(sandbox / "work", project);
}

void make_layer(const fs::path& sandbox, std::optional<std::uint64_t> limit) {
  const bool made = fs::exists(sandbox / "upper") || fs::exists(image_of(sandbox));
  if (made) return;
  if (!limit) {
    make_directories_in(open_file(sandbox, O_RDONLY | O_DIRECTORY).get());
  } else if (enforces_project_quotas(sandbox)) {
    make_with_quota(sandbox, *limit);
  } else {
    make_disk_image(image_of(sandbox), *limit);
  }
}

}  // namespace

void check_disk_limit(const fs::path& sandboxes, std::uint64_t limit) {
  if (limit < kSmallestLimit)
    throw usage_error("a disk limit of " + format_size(limit) + " is too small")
        .hint("use at least " + format_size(kSmallestLimit));
  if (enforces_project_quotas(sandboxes)) return;
  attempt("cannot enforce the disk limit of the sandbox", [] { check_disk_images(); });
}

UniqueFd open_writable_layer(const fs::path& sandbox, std::optional<std::uint64_t> limit, LayerUse use) {
  return attempt("cannot open the writable layer", [&] {
    if (use == LayerUse::Run) make_layer(sandbox, limit);
    const std::uint64_t flags = MountFlags::kNoDev | (use == LayerUse::Look ? MountFlags::kReadOnly : 0);
    if (fs::exists(image_of(sandbox))) {
      UniqueFd mount = mount_disk_image(image_of(sandbox), use == LayerUse::Run ? MountFlags::kNoDev : flags);
      if (use == LayerUse::Run) make_directories_in(mount.get());
      return mount;
    }
    if (!fs::exists(sandbox / "upper")) throw failure("the sandbox has none");
    UniqueFd mount = clone_mount(sandbox);
    set_mount_attributes(mount.get(), flags);
    return mount;
  });
}

bool has_disk_quota(const fs::path& sandbox) { return recorded_project(sandbox).has_value(); }

void limit_disk(const fs::path& sandbox, std::uint64_t limit) {
  const auto project = recorded_project(sandbox);
  if (!project) throw failure("the sandbox has no quota");
  limit_project(sandbox, *project, limit);
}

std::uint64_t writable_layer_bytes(const fs::path& sandbox) {
  if (const auto project = recorded_project(sandbox)) return project_use(sandbox, *project).bytes;
  if (fs::exists(image_of(sandbox))) {
    const UniqueFd mount = mount_disk_image(image_of(sandbox), MountFlags::kReadOnly);
    struct statvfs info {};
    if (::fstatvfs(mount.get(), &info) != 0) throw system_error("ask how full the writable layer is");
    return std::uint64_t{info.f_blocks - info.f_bfree} * info.f_frsize;
  }
  if (!fs::exists(sandbox / "upper")) return 0;
  return tree_bytes(open_file(sandbox / "upper", O_RDONLY | O_DIRECTORY).get());
}

void release_writable_layer(const fs::path& sandbox) {
  if (const auto project = recorded_project(sandbox)) limit_project(sandbox, *project, 0);
}

}  // namespace dsec::runners
