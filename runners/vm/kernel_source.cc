#include "runners/vm/kernel_source.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "runners/vm/boot_image.h"
#include "runners/vm/kernel_archive.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kMostImage = 256ull << 20;

std::vector<fs::path> entries(const fs::path& directory, std::string_view beginning, std::string_view ending = "") {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().native();
    if (name.starts_with(beginning) && name.ends_with(ending)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

Error several(const std::string& what, const fs::path& place, const std::vector<fs::path>& found) {
  std::string names;
  for (const fs::path& path : found) names += (names.empty() ? "" : ", ") + path.filename().native();
  return usage_error(quote(place.native()) + " has more than one " + what + ": " + names)
      .hint("give a directory or package with one kernel");
}

fs::path find_image(const fs::path& root) {
  std::vector<fs::path> found = entries(root / "boot", "vmlinuz-");
  if (found.empty()) found = entries(root, "vmlinuz");
  if (found.size() > 1) throw several("kernel", root, found);
  if (found.empty())
    throw failure(quote(root.native()) + " has no kernel: no boot/vmlinuz-*")
        .hint("give a Debian kernel package, or a directory with boot/vmlinuz-* and lib/modules");
  return found.front();
}

fs::path find_modules(const fs::path& root, const std::string& release) {
  std::vector<fs::path> found;
  for (const char* place : {"lib/modules", "usr/lib/modules"}) {
    const fs::path wanted = root / place / release;
    if (!release.empty() && fs::is_directory(wanted)) return wanted;
    for (fs::path& each : entries(root / place, ""))
      if (fs::is_directory(each)) found.push_back(std::move(each));
  }
  if (!release.empty() && !found.empty())
    throw failure(quote(root.native()) + " has no modules of the kernel " + release + ", only of " +
                  found.front().filename().native());
  if (found.empty())
    throw failure(quote(root.native()) + " has no modules: no lib/modules/" + (release.empty() ? "*" : release));
  if (found.size() > 1) throw several("release of modules", root, found);
  return found.front();
}

KernelFiles in_directory(const fs::path& root) {
  KernelFiles files;
  files.image = find_image(root);
  files.release = boot_image_release(read_file(files.image, kMostImage));
  if (files.release.empty())
    throw failure(quote(files.image.native()) + " is no kernel that QEMU could start: it is no bzImage");
  files.modules = find_modules(root, files.release);
  return files;
}

KernelFiles in_package(const fs::path& package, const fs::path& scratch) {
  auto unpacked = std::make_unique<TempDirectory>(scratch);
  unpack_kernel_archive(package, unpacked->path());
  KernelFiles files =
      attempt(quote(package.native()) + " is of no use", [&] { return in_directory(unpacked->path()); });
  files.unpacked = std::move(unpacked);
  return files;
}

}  // namespace

KernelFiles find_kernel_files(const fs::path& source, const fs::path& scratch) {
  const fs::file_status status = fs::status(source);
  if (!fs::exists(status)) throw usage_error("there is no file " + quote(source.native()));
  if (!fs::is_directory(status)) return in_package(source, scratch);
  const std::vector<fs::path> packages = entries(source, "linux-image-", ".deb");
  if (packages.size() > 1) throw several("kernel package", source, packages);
  if (packages.size() == 1 && entries(source / "boot", "vmlinuz-").empty())
    return in_package(packages.front(), scratch);
  return in_directory(source);
}

}  // namespace dsec::runners
