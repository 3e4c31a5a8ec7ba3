#include "runners/vm/cpio.h"

#include <archive.h>
#include <archive_entry.h>

#include <catch2/catch.hpp>
#include <map>

#include "runners/container/tar_stream.h"

using dsec::runners::ArchiveDeleter, dsec::runners::CpioWriter;

namespace {

struct Found {
  std::string content;
  unsigned type = 0, permissions = 0, device = 0;
};

/// As another program reads it.
std::map<std::string, Found> read(const std::string& bytes) {
  const std::unique_ptr<archive, ArchiveDeleter> handle(archive_read_new());
  archive_read_support_format_cpio(handle.get());
  REQUIRE(archive_read_open_memory(handle.get(), bytes.data(), bytes.size()) == ARCHIVE_OK);
  std::map<std::string, Found> found;
  archive_entry* entry = nullptr;
  int result = 0;
  while ((result = archive_read_next_header(handle.get(), &entry)) == ARCHIVE_OK) {
    Found& each = found[archive_entry_pathname(entry)];
    each.type = archive_entry_filetype(entry);
    each.permissions = archive_entry_perm(entry);
    each.device = static_cast<unsigned>(archive_entry_rdev(entry));
    each.content.resize(static_cast<std::size_t>(archive_entry_size(entry)));
    REQUIRE(archive_read_data(handle.get(), each.content.data(), each.content.size()) ==
            static_cast<la_ssize_t>(each.content.size()));
    CHECK(archive_entry_uid(entry) == 0);
    CHECK(archive_entry_mtime(entry) == 0);
  }
  REQUIRE(result == ARCHIVE_EOF);
  return found;
}

std::string example() {
  CpioWriter writer;
  writer.directory("dev");
  writer.character_device("dev/console", 5, 1);
  writer.file("init", std::string("binary\0content", 14), 0755);
  writer.file("empty", "");
  return writer.finish();
}

}  // namespace

TEST_CASE("libarchive reads what is written", "[runners][vm]") {
  const auto found = read(example());
  REQUIRE(found.size() == 4);
  CHECK(found.at("dev").type == AE_IFDIR);
  CHECK(found.at("dev/console").type == AE_IFCHR);
  CHECK(found.at("dev/console").device == 0x501);
  CHECK(found.at("init").content == std::string("binary\0content", 14));
  CHECK(found.at("init").permissions == 0755);
  CHECK(found.at("empty").content.empty());
}

TEST_CASE("the same files give the same bytes, in whole blocks", "[runners][vm]") {
  CHECK(example() == example());
  CHECK(example().size() % 512 == 0);
}
