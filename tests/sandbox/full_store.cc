// A store whose disk is full: what was there stays whole, nothing half done stays, and gc makes room again.
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/gc/gc.h"
#include "registry/publish.h"
#include "registry/pull.h"
#include "registry/store/verify.h"
#include "tests/support/skip.h"

using namespace dsec;
using namespace dsec::registry;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// A filesystem of the given size, below a directory of the test.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& size) {
    if (::mount("dsec-test", directory_.path().c_str(), "tmpfs", MS_NOSUID | MS_NODEV, ("size=" + size).c_str()) != 0)
      throw system_error("mount a small tmpfs");
  }
  ~SmallDisk() { ::umount2(directory_.path().c_str(), MNT_DETACH); }
  const fs::path& path() const { return directory_.path(); }

 private:
  TempDirectory directory_{fs::temp_directory_path()};
};

LayerManifest put_blobs(engine::BlobSession& session, int number, std::size_t size) {
  LayerManifest manifest{LayerName::parse("base/l" + std::to_string(number)), "linux/amd64", {}, {}, {}, {}};
  std::string content(size, static_cast<char>('a' + number % 26));
  content += std::to_string(number);
  TempFile file = session.new_file();
  write_all(file.fd(), content);
  LayerImage image;
  image.blobs.push_back(session.adopt(std::move(file), BlobRole::Meta));
  manifest.images.push_back(image);
  return manifest;
}

void put(LocalStore& store, int number, std::size_t size, const std::string& tag) {
  const auto session = store.begin_session();
  store.add(put_blobs(*session, number, size), tag, engine::Trust::BuiltHere, *session);
}

/// Adds layers until the disk is full; returns how many there are, and why the next could not be added.
int fill(LocalStore& store, std::size_t size, const std::string& tag, std::string& why) {
  for (int number = 0; number < 1000; ++number) {
    try {
      put(store, number, size, tag);
    } catch (const Error& error) {
      why = error.message();
      return number;
    }
  }
  return 1000;
}

std::size_t temporary_files(const fs::path& root) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    count += entry.path().filename().native().starts_with(".tmp-");
  return count;
}

}  // namespace

TEST_CASE("a full disk keeps what the store has, and gc makes room", "[sandbox][store]") {
  if (::geteuid() != 0) SKIP_BECAUSE("it needs root, to mount a small disk");
  SmallDisk disk("12M");
  Progress quiet;
  LocalStore store(engine::Home::open(disk.path() / "home"));
  std::string why;
  const int tagged = fill(store, 700'000, "1", why);
  CHECK(tagged > 5);
  CHECK_THAT(why, Contains("ENOSPC") || Contains("full"));
  CHECK(store.list().size() == static_cast<std::size_t>(tagged));
  CHECK(temporary_files(disk.path()) == 0);
  CHECK(verify_store(store, {}, quiet).problems.empty());

  // Even the last page of the disk gone does not keep gc from working.
  fill(store, 3'000, "small", why);
  store.remove(LayerRef::parse("base/l0:1"));
  store.remove(LayerRef::parse("base/l1:1"));
  CHECK(collect_garbage(store, {}, false).bytes > 600'000);
  put(store, 999, 100'000, "after");
  CHECK(verify_store(store, {}, quiet).problems.empty());
  CHECK(temporary_files(disk.path()) == 0);
}

TEST_CASE("a store on a full disk can be opened, and be made smaller", "[sandbox][store]") {
  if (::geteuid() != 0) SKIP_BECAUSE("it needs root, to mount a small disk");
  SmallDisk disk("12M");
  const auto home = engine::Home::open(disk.path() / "home");
  {
    LocalStore store(home);
    put(store, 1, 700'000, "1");
  }
  const UniqueFd other(::open((disk.path() / "other").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string bytes(4096, 'x');
  while (::write(other.get(), bytes.data(), bytes.size()) > 0) continue;
  LocalStore store(home);
  CHECK(store.list().size() == 1);
  store.remove(LayerRef::parse("base/l1:1"));
  CHECK(collect_garbage(store, {}, false).bytes > 600'000);
}

TEST_CASE("a full disk fails a pull before it begins, and a publishing without traces", "[sandbox][store]") {
  if (::geteuid() != 0) SKIP_BECAUSE("it needs root, to mount a small disk");
  SmallDisk small("4M"), large("64M");
  Progress quiet;
  LocalStore from(engine::Home::open(large.path() / "home")), to(engine::Home::open(small.path() / "home"));
  put(from, 1, 6'000'000, "1");
  const std::vector<LayerRef> refs = {LayerRef::parse("base/l1:1")};
  const auto good = RegistryAddress::parse("file://" + (large.path() / "registry").native());
  const auto full = RegistryAddress::parse("file://" + (small.path() / "registry").native());
  publish(from, refs, good, {}, quiet);
  CHECK_THROWS_WITH(pull(to, refs[0], good, quiet), Contains("cannot pull base/l1:1"));
  CHECK(to.list().empty());
  CHECK_THROWS_WITH(publish(from, refs, full, {}, quiet), Contains("cannot publish base/l1:1"));
  CHECK(temporary_files(small.path()) == 0);
  CHECK(check_registry(full, {}, quiet).problems.empty());
  collect_garbage(to, {}, false);
  CHECK(verify_store(to, {}, quiet).problems.empty());
}
