#include "runners/vm/module_table.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "runners/vm/initramfs.h"
#include "tests/support/kernel_modules.h"

using dsec::Error, dsec::runners::ModuleTable, dsec::tests::ModuleFolder, dsec::tests::module_bytes;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> names(const std::vector<fs::path>& files) {
  std::vector<std::string> result;
  for (const fs::path& file : files) result.push_back(dsec::runners::module_name(file));
  return result;
}

std::vector<std::string> order_of(const ModuleFolder& folder, const std::string& wanted) {
  ModuleTable table(folder.path());
  std::vector<fs::path> order;
  table.add(wanted, order);
  return names(order);
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a module comes after all that it needs, and none comes twice", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  folder.add("top", {"depends=left,right-hand"});
  folder.add("left", {"depends=bottom"});
  folder.add("right-hand", {"depends=bottom"});
  folder.add("bottom", {"depends="});
  CHECK(order_of(folder, "top") == Names{"bottom", "left", "right_hand", "top"});
}

TEST_CASE("modules.dep counts where depmod has made it", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  folder.add("top", {"depends=outdated"});
  folder.add("other", {"depends="});
  folder.write("modules.dep", "kernel/top.ko: kernel/other.ko\nkernel/other.ko:\n");
  CHECK(order_of(folder, "top") == Names{"other", "top"});
}

TEST_CASE("what is built in is not loaded", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  folder.add("top", {"depends=inside,beside"});
  folder.add("beside", {"depends="});
  folder.write("modules.builtin", "kernel/lib/inside.ko\n");
  CHECK(order_of(folder, "top") == Names{"beside", "top"});
  CHECK(order_of(folder, "inside").empty());
}

TEST_CASE("a soft dependency is loaded before by its name or alias where there is one", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  folder.add("user", {"depends=", "softdep=pre: checksum nowhere post: later"});
  folder.add("fast-sum", {"depends=", "alias=checksum"});
  folder.add("later", {"depends="});
  CHECK(order_of(folder, "user") == Names{"fast_sum", "user"});
  folder.write("modules.builtin", "kernel/sum.ko\n");
  folder.write("modules.builtin.modinfo", std::string("sum.alias=checksum\0sum.license=GPL\0", 35));
  CHECK(order_of(folder, "user") == Names{"user"});
}

TEST_CASE("modules.softdep and modules.alias are read", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  folder.add("user", {"depends="});
  folder.add("sum", {"depends="});
  folder.write("modules.softdep", "# comment\nsoftdep user pre: checksum\n");
  folder.write("modules.alias", "# comment\nalias checksum sum\n");
  CHECK(order_of(folder, "user") == Names{"sum", "user"});
}

TEST_CASE("soft dependencies may go in a circle", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  folder.add("one", {"depends=", "softdep=pre: two"});
  folder.add("two", {"depends=", "softdep=pre: one"});
  CHECK(order_of(folder, "one") == Names{"two", "one"});
}

TEST_CASE("a missing dependency is named with who needs it", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  folder.add("top", {"depends=gone"});
  REQUIRE_THROWS_WITH(order_of(folder, "top"),
                      Catch::Contains("'top' needs 'gone', which this kernel has neither as a file nor built in"));
  REQUIRE_THROWS_WITH(order_of(folder, "nothing"), Catch::Contains("has no module 'nothing'"));
}

TEST_CASE("a directory without modules is refused", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  REQUIRE_THROWS_WITH(ModuleTable(folder.path()), Catch::Contains("has no modules"));
}

TEST_CASE("a module that is cut off or none is refused with its name", "[runners][vm]") {
  const std::string whole = module_bytes({"depends="});
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, std::size_t{40}, std::size_t{70}, whole.size() - 1}) {
    ModuleFolder folder(fs::temp_directory_path());
    folder.write("kernel/half.ko", whole.substr(0, size));
    try {
      order_of(folder, "half");
      FAIL("a module of " << size << " bytes was accepted");
    } catch (const Error& error) {
      CHECK(error.chain().front() == "cannot read the module 'half.ko'");
    }
  }
}

TEST_CASE("a kernel without drives cannot run guests", "[runners][vm]") {
  ModuleFolder folder(fs::temp_directory_path());
  for (const char* name : {"virtio_mmio", "virtio_console", "erofs", "overlay", "ext4"}) folder.add(name, {"depends="});
  ModuleTable table(folder.path());
  REQUIRE_THROWS_WITH(dsec::runners::choose_modules(table), Catch::Contains("cannot run a guest"));
}
