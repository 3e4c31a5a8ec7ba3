#include "runners/vm/warm_store.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::runners {
namespace {
namespace fs = std::filesystem;

struct Home {
  Home() : place(fs::temp_directory_path()) {
    for (const char* name : {"kernel", "initramfs", "qemu"}) std::ofstream(path() / name) << name;
    kernel.name = "lts";
    kernel.release = "6.1.0-cloud";
    kernel.kernel = path() / "kernel";
    kernel.initramfs = path() / "initramfs";
  }
  fs::path path() const { return place.path(); }
  WarmMachine machine(std::uint64_t memory = 256 << 20, unsigned cpus = 2, const char* option = "microvm") const {
    return describe_warm_machine(kernel, path() / "qemu", Accelerator::Tcg, memory, cpus, false,
                                 {"qemu", "-M", option});
  }
  WarmGuest keep(const WarmMachine& machine, const std::string& content = "state") const {
    std::ofstream(path() / "saved") << content;
    std::ofstream(path() / "pages") << "pages";
    fs::resize_file(path() / "pages", machine.memory);
    WarmGuest guest;
    guest.machine = machine;
    guest.kernel = kernel.release;
    guest.vmm = "7.2.22";
    guest.boot = host_boot();
    return keep_warm_guest(path(), std::move(guest), {path() / "saved", path() / "pages"});
  }
  std::vector<WarmGuest> list() const {
    std::vector<std::string> problems;
    std::vector<WarmGuest> found = list_warm_guests(path(), problems);
    CHECK(problems.empty());
    return found;
  }
  TempDirectory place;
  GuestKernel kernel;
};

}  // namespace

TEST_CASE("a saved guest is found by its machine, whole and as it was saved", "[runners][warm]") {
  const Home home;
  CHECK_FALSE(find_warm_guest(home.path(), home.machine()));
  const WarmGuest kept = home.keep(home.machine());
  const auto found = find_warm_guest(home.path(), home.machine());
  REQUIRE(found);
  CHECK(found->name == kept.name);
  CHECK(read_file(found->files.state) == "state");
  CHECK(fs::file_size(found->files.memory) == 256 << 20);
  // Holes are not counted.
  CHECK(found->bytes > 0);
  CHECK(found->bytes < 1 << 20);
  CHECK(misfit(*found, home.machine()).empty());
  for (const char* name : {"saved", "pages"}) CHECK_FALSE(fs::exists(home.path() / name));
}

TEST_CASE("another machine has none", "[runners][warm]") {
  const Home home;
  const WarmGuest kept = home.keep(home.machine());
  CHECK_FALSE(find_warm_guest(home.path(), home.machine(512 << 20)));
  CHECK_FALSE(find_warm_guest(home.path(), home.machine(256 << 20, 1)));
  CHECK_FALSE(find_warm_guest(home.path(), home.machine(256 << 20, 2, "q35")));
  CHECK(misfit(kept, home.machine(256 << 20, 2, "q35")) == "other options of the machine");
  std::ofstream(home.path() / "qemu") << "a newer one";
  CHECK_FALSE(find_warm_guest(home.path(), home.machine()));
  CHECK(misfit(kept, home.machine()) == "other QEMU");
  std::ofstream(home.path() / "initramfs") << "of a newer dsec";
  CHECK(misfit(kept, home.machine()) == "other QEMU, initramfs");
}

TEST_CASE("what was cut off or is another is not used", "[runners][warm]") {
  const Home home;
  const WarmGuest kept = home.keep(home.machine());
  std::ofstream(kept.files.state) << "stale";
  CHECK_FALSE(find_warm_guest(home.path(), home.machine()));
  CHECK(misfit(kept, home.machine()) == "its state is not what was saved");
  std::ofstream(kept.files.state) << "state";
  CHECK(find_warm_guest(home.path(), home.machine()));
  fs::resize_file(kept.files.memory, 4096);
  CHECK_FALSE(find_warm_guest(home.path(), home.machine()));
  CHECK(misfit(kept, home.machine()) == "its memory was cut off");
  fs::remove(kept.files.state);
  fs::resize_file(kept.files.memory, kept.machine.memory);
  CHECK_FALSE(find_warm_guest(home.path(), home.machine()));
  CHECK_THAT(misfit(kept, home.machine()), Catch::Contains("No such file"));
}

TEST_CASE("after another boot of the host its counter has to run as it did", "[runners][warm]") {
  const Home home;
  WarmGuest kept = home.keep(home.machine());
  kept.boot = "another";
  kept.clock = counter_khz();
  CHECK(misfit(kept, home.machine()).empty());
  kept.clock += kept.clock / 100;
  CHECK(misfit(kept, home.machine()) == "the processor's counter runs at another rate");
  kept.boot = host_boot();
  CHECK(misfit(kept, home.machine()).empty());
}

TEST_CASE("one of an equal machine takes the place of the other", "[runners][warm]") {
  const Home home;
  home.keep(home.machine(), "first");
  const WarmGuest second = home.keep(home.machine(), "second");
  REQUIRE(home.list().size() == 1);
  CHECK(read_file(second.files.state) == "second");
}

TEST_CASE("a description that makes no sense is told", "[runners][warm]") {
  const Home home;
  const WarmGuest kept = home.keep(home.machine());
  const fs::path description = kept.files.state.parent_path() / "guest.json";
  for (const char* text :
       {"", "{}", "[]", "null", R"({"version": 99})", R"({"version": 1})", R"({"version": 2, "memory": "much"})",
        R"({"version": 2, "memory": 1, "cpus": 1, "machine": {"kernel": 5}})",
        R"({"version": 2, "memory": 1, "cpus": 1, "machine": []})"}) {
    std::ofstream(description, std::ios::trunc) << text;
    std::vector<std::string> problems;
    CHECK(list_warm_guests(home.path(), problems).empty());
    CHECK(problems.size() == 1);
    CHECK_FALSE(find_warm_guest(home.path(), home.machine()));
  }
}

TEST_CASE("only saved guests are removed by name", "[runners][warm]") {
  const Home home;
  const WarmGuest kept = home.keep(home.machine());
  for (const char* name : {"", ".", "..", "../kernels", "0123456789ab", "/etc"})
    CHECK_FALSE(remove_warm_guest(home.path(), name));
  CHECK(remove_warm_guest(home.path(), kept.name));
  CHECK(home.list().empty());
  CHECK_FALSE(find_warm_guest(home.path(), home.machine()));
}

}  // namespace dsec::runners
