#include "runners/vm/kernel_archive.h"

#include <archive.h>
#include <archive_entry.h>

#include <catch2/catch.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/container/tar_stream.h"
#include "runners/vm/boot_image.h"
#include "runners/vm/kernel_source.h"

using dsec::Error, dsec::TempDirectory, dsec::runners::ArchiveDeleter;
namespace fs = std::filesystem;

namespace {

struct File {
  std::string name, content;
  unsigned type = AE_IFREG;
};

std::string archive_of(const std::vector<File>& files, int (*format)(archive*), int (*filter)(archive*)) {
  const std::unique_ptr<archive, ArchiveDeleter> handle(archive_write_new());
  format(handle.get());
  if (filter != nullptr) filter(handle.get());
  archive_write_set_bytes_in_last_block(handle.get(), 1);
  std::string out(1 << 20, '\0');
  std::size_t used = 0;
  REQUIRE(archive_write_open_memory(handle.get(), out.data(), out.size(), &used) == ARCHIVE_OK);
  for (const File& file : files) {
    const auto entry = dsec::runners::new_entry();
    archive_entry_set_pathname(entry.get(), file.name.c_str());
    archive_entry_set_filetype(entry.get(), file.type);
    archive_entry_set_perm(entry.get(), 0644);
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(file.content.size()));
    if (file.type == AE_IFLNK) archive_entry_set_symlink(entry.get(), "/etc/passwd");
    REQUIRE(archive_write_header(handle.get(), entry.get()) == ARCHIVE_OK);
    archive_write_data(handle.get(), file.content.data(), file.content.size());
  }
  REQUIRE(archive_write_close(handle.get()) == ARCHIVE_OK);
  out.resize(used);
  return out;
}

std::string tar_of(const std::vector<File>& files) {
  return archive_of(files, archive_write_set_format_ustar, archive_write_add_filter_xz);
}

std::string package_of(const std::vector<File>& files) {
  return archive_of({{"debian-binary", "2.0\n"},
                     {"control.tar.xz", tar_of({{"./control", "Package: x\n"}})},
                     {"data.tar.xz", tar_of(files)}},
                    archive_write_set_format_ar_svr4, nullptr);
}

const std::vector<File> kKernel = {{"./boot/vmlinuz-1.2.3", "kernel"},
                                   {"./boot/config-1.2.3", "config"},
                                   {"./usr/lib/modules/1.2.3/kernel/x.ko", "module"},
                                   {"./usr/share/doc/x", "text"}};

struct Place {
  TempDirectory folder{fs::temp_directory_path()};
  fs::path target = folder.path() / "target";

  void unpack(const std::string& bytes) {
    dsec::write_file_atomic(folder.path() / "package", bytes);
    dsec::runners::unpack_kernel_archive(folder.path() / "package", target);
  }
};

/// A bzImage in so far as its header counts.
std::string boot_image(const std::string& release) {
  std::string image(2048, '\0');
  image.replace(0x202, 4, "HdrS");
  image[0x20e] = 0;
  image[0x20f] = 2;
  image.replace(0x400, release.size() + 1, release + " ");
  return image;
}

}  // namespace

TEST_CASE("of a kernel package its kernel and modules are unpacked, and nothing else", "[runners][vm]") {
  for (const std::string& bytes : {package_of(kKernel), tar_of(kKernel)}) {
    Place place;
    place.unpack(bytes);
    CHECK(dsec::read_file(place.target / "boot/vmlinuz-1.2.3") == "kernel");
    CHECK(dsec::read_file(place.target / "lib/modules/1.2.3/kernel/x.ko") == "module");
    CHECK_FALSE(fs::exists(place.target / "boot/config-1.2.3"));
    CHECK_FALSE(fs::exists(place.target / "usr"));
  }
}

TEST_CASE("a package that is cut off anywhere is refused", "[runners][vm]") {
  const std::string whole = package_of(kKernel);
  for (std::size_t size = 0; size + 20 < whole.size(); size += 97) {
    Place place;
    INFO(size << " of " << whole.size());
    CHECK_THROWS_AS(place.unpack(whole.substr(0, size)), Error);
  }
}

TEST_CASE("a package without a kernel says so", "[runners][vm]") {
  Place place;
  REQUIRE_THROWS_WITH(place.unpack(package_of({{"./usr/share/doc/linux-image-cloud-amd64/copyright", "text"}})),
                      Catch::Contains("cannot unpack"));
  try {
    place.unpack(package_of({{"./usr/share/doc/x", "text"}}));
  } catch (const Error& error) {
    CHECK(error.chain().back() == "it has no kernel");
    CHECK(error.hints().size() == 1);
  }
}

TEST_CASE("nothing of a package is written beside its place", "[runners][vm]") {
  Place place;
  CHECK_THROWS_AS(place.unpack(package_of({{"./lib/modules/../../../escaped", "x"}})), Error);
  CHECK_FALSE(fs::exists(place.folder.path() / "escaped"));
  place.unpack(package_of({{"./boot/vmlinuz-1", "x"}, {"./lib/modules/1/build", "", AE_IFLNK}}));
  CHECK_FALSE(fs::is_symlink(place.target / "lib/modules/1/build"));
}

TEST_CASE("a directory is asked for one kernel and its modules", "[runners][vm]") {
  const TempDirectory folder(fs::temp_directory_path());
  const auto find = [&] { return dsec::runners::find_kernel_files(folder.path(), folder.path()); };
  REQUIRE_THROWS_WITH(find(), Catch::Contains("has no kernel"));
  fs::create_directories(folder.path() / "boot");
  dsec::write_file_atomic(folder.path() / "boot/vmlinuz-1.2.3", "no kernel at all");
  REQUIRE_THROWS_WITH(find(), Catch::Contains("no bzImage"));
  dsec::write_file_atomic(folder.path() / "boot/vmlinuz-1.2.3", boot_image("1.2.3"));
  REQUIRE_THROWS_WITH(find(), Catch::Contains("has no modules"));
  fs::create_directories(folder.path() / "lib/modules/9.9.9");
  REQUIRE_THROWS_WITH(find(), Catch::Contains("no modules of the kernel 1.2.3, only of 9.9.9"));
  fs::create_directories(folder.path() / "usr/lib/modules/1.2.3");
  CHECK(find().modules == folder.path() / "usr/lib/modules/1.2.3");
  dsec::write_file_atomic(folder.path() / "boot/vmlinuz-2", boot_image("2"));
  REQUIRE_THROWS_WITH(find(), Catch::Contains("more than one kernel: vmlinuz-1.2.3, vmlinuz-2"));
}

TEST_CASE("a kernel that is cut off is no kernel", "[runners][vm]") {
  CHECK(dsec::runners::boot_image_release(boot_image("6.1.0-x")) == "6.1.0-x");
  CHECK(dsec::runners::boot_image_release("").empty());
  CHECK(dsec::runners::boot_image_release(boot_image("6.1.0-x").substr(0, 600)).empty());
  CHECK_FALSE(dsec::runners::extract_vmlinux("anything").has_value());
  std::string image = boot_image("1");
  image[0x206] = 0x0f;
  image[0x207] = 0x02;
  image.replace(0x248, 4, "\xff\xff\xff\x7f");
  CHECK_THROWS_AS(dsec::runners::extract_vmlinux(image), Error);
}
