#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <stdexcept>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/tar_source.h"
#include "tests/unit/layers/recorded_tree.h"
#include "tests/unit/layers/tar_builder.h"

using namespace dsec;
using namespace dsec::layers;

namespace {

using Fields = TarBuilder::Fields;

RecordedTree read_tar(const std::string& bytes, const SourceOptions& options = {}) {
  const TempDirectory directory(std::filesystem::temp_directory_path());
  write_file_atomic(directory.path() / "in.tar", bytes);
  TarSource source((directory.path() / "in.tar").native(), directory.path());
  Progress progress;
  if (source.examine(options, progress).images != 1) throw std::logic_error("several images");
  RecordedTree tree;
  source.emit(0, tree);
  tree.finish();
  return tree;
}

RecordedTree read_tar(const TarBuilder& tar) { return read_tar(tar.str()); }

std::string refusal_of(const std::string& bytes, const SourceOptions& options = {}) {
  try {
    read_tar(bytes, options);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

std::string refusal_of(const TarBuilder& tar) { return refusal_of(tar.str()); }

std::string base256(std::uint64_t value, std::size_t size) {
  std::string out(size, '\0');
  for (std::size_t i = size; i-- > 1; value >>= 8) out[i] = static_cast<char>(value & 0xff);
  out[0] = '\x80';
  return out;
}

}  // namespace

TEST_CASE("all spellings of a path are one path, and a root entry sets the root's attributes", "[layers][archive]") {
  const RecordedTree tree = read_tar(
      TarBuilder().dir("./", 0700, {.uid = "7"}).dir("a").file("./a/b", "1").file("a//b", "2").file("/a/./c", "3"));
  CHECK(tree.listing() == "/ a/ a/b a/c");
  CHECK(tree.at("").entry.mode == 0700);
  CHECK(tree.at("").entry.uid == 7);
  CHECK(tree.content("a/b") == "2");
}

TEST_CASE("marker-like names of a plain archive are ordinary files", "[layers][archive]") {
  CHECK(read_tar(TarBuilder().file(".wh.a", "x").file("d/.wh..wh..opq").file("a")).listing() ==
        ".wh.a a d/.wh..wh..opq");
}

TEST_CASE("names are bytes, whatever their encoding", "[layers][archive]") {
  const std::string latin1 = "caf\xe9", pax_name = std::string(120, 'n') + "\xff\xfe";
  const RecordedTree tree =
      read_tar(TarBuilder().file(latin1, "1").file(pax_name, "2").file("a\nb", "3").file("...", "4"));
  CHECK(tree.content(latin1) == "1");
  CHECK(tree.content(pax_name) == "2");
  CHECK(tree.content("a\nb") == "3");
  CHECK(tree.content("...") == "4");
}

TEST_CASE("times keep their sign and their fraction", "[layers][archive]") {
  const RecordedTree tree = read_tar(TarBuilder()
                                         .file("minus", "", {.pax = {{"mtime", "-1.25"}}})
                                         .file("half", "", {.pax = {{"mtime", "-0.5"}}})
                                         .file("digit", "", {.pax = {{"mtime", "1700000000.5"}}})
                                         .file("fine", "", {.pax = {{"mtime", "0.0000000019"}}})
                                         .file("far", "", {.mtime = base256(253402300800, 12)})
                                         .file("before", "", {.mtime = std::string(11, '\xff') + "\xfe"}));
  CHECK(tree.at("minus").entry.mtime == Timestamp{-2, 750'000'000});
  CHECK(tree.at("half").entry.mtime == Timestamp{-1, 500'000'000});
  CHECK(tree.at("digit").entry.mtime == Timestamp{1700000000, 500'000'000});
  CHECK(tree.at("fine").entry.mtime == Timestamp{0, 1});
  CHECK(tree.at("far").entry.mtime == Timestamp{253402300800, 0});
  CHECK(tree.at("before").entry.mtime == Timestamp{-2, 0});
}

TEST_CASE("owners and modes of any size survive", "[layers][archive]") {
  const RecordedTree tree =
      read_tar(TarBuilder()
                   .file("pax", "", {.mode = 04755, .pax = {{"uid", "4000000000"}, {"gid", "70000"}}})
                   .file("base256", "", {.mode = 0107000, .uid = base256(3000000, 8)}));
  CHECK(tree.at("pax").entry.uid == 4000000000);
  CHECK(tree.at("pax").entry.gid == 70000);
  CHECK(tree.at("pax").entry.mode == 04755);
  CHECK(tree.at("base256").entry.uid == 3000000);
  CHECK(tree.at("base256").entry.mode == 07000);
  CHECK(refusal_of(TarBuilder().file("huge", "", {.pax = {{"uid", "4294967296"}}})).find("'huge' has the owner") !=
        std::string::npos);
}

TEST_CASE("extended attributes of the file stay, those of a host and of overlayfs go", "[layers][archive]") {
  const std::string value("a\0b=\n", 5);
  const RecordedTree tree = read_tar(TarBuilder().file("f", "",
                                                       {.pax = {{"SCHILY.xattr.user.bytes", value},
                                                                {"SCHILY.xattr.user.empty", ""},
                                                                {"LIBARCHIVE.xattr.user.%3D", "AAE"},
                                                                {"SCHILY.xattr.trusted.overlay.opaque", "y"},
                                                                {"SCHILY.xattr.user.overlay.redirect", "/x"},
                                                                {"SCHILY.xattr.security.selinux", "label"}}}));
  CHECK(tree.at("f").entry.xattrs == std::map<std::string, std::string>{{"user.bytes", value},
                                                                        {"user.empty", ""},
                                                                        {"user.=", std::string("\0\1", 2)}});
}

TEST_CASE("an ACL in words becomes the kernel's form", "[layers][archive]") {
  using namespace std::string_literals;
  const auto value_of = [](const std::string& words) {
    const RecordedTree tree = read_tar(TarBuilder().file("f", "", {.pax = {{"SCHILY.acl.access", words}}}));
    return tree.at("f").entry.xattrs.at("system.posix_acl_access");
  };
  CHECK(value_of("user::rw-,user:lisa:r--:1000,group::r--,mask::r--,other::---") ==
        "\2\0\0\0"
        "\1\0\6\0\xff\xff\xff\xff"
        "\2\0\4\0\xe8\3\0\0"
        "\4\0\4\0\xff\xff\xff\xff"
        "\x10\0\4\0\xff\xff\xff\xff"
        "\x20\0\0\0\xff\xff\xff\xff"s);
  // Names alone, as GNU tar writes them: root is the same everywhere, of the others nobody knows the number.
  CHECK(value_of("user::rw-\nuser:root:rwx\t#effective:r--\ngroup::r--\nmask::r--\nother::r--\n").substr(12, 8) ==
        "\2\0\7\0\0\0\0\0"s);
  CHECK(refusal_of(TarBuilder().file("before").file("d/f", "", {.pax = {{"SCHILY.acl.access", "user:lisa:r--"}}}))
            .find("entry 'd/f' has the ACL 'user:lisa:r--', which names somebody without a number") !=
        std::string::npos);
}

TEST_CASE("an ACL that says no more than the mode is none, and what Linux would not take is refused",
          "[layers][archive]") {
  const auto entry = [](char tag, char permissions, std::uint32_t id = 0xffffffff) {
    std::string bytes = {tag, '\0', permissions, '\0'};
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(id >> (8 * i) & 0xff);
    return bytes;
  };
  const std::string version = {'\2', '\0', '\0', '\0'}, minimal = version + entry(1, 6) + entry(4, 4) + entry(32, 4);
  const auto file = [](const std::string& name, const std::string& value) {
    return TarBuilder().add("f",
                            {.type = '5', .mode = 0755, .pax = {{"SCHILY.xattr.system.posix_acl_" + name, value}}});
  };
  CHECK(read_tar(file("access", minimal)).at("f").entry.xattrs.empty());
  CHECK(read_tar(file("access", version)).at("f").entry.xattrs.empty());
  CHECK(read_tar(file("default", version)).at("f").entry.xattrs.empty());
  CHECK(read_tar(TarBuilder().file("f", "", {.pax = {{"SCHILY.acl.access", "user::rw-,group::r--,other::r--"}}}))
            .at("f")
            .entry.xattrs.empty());
  CHECK(read_tar(file("default", minimal)).at("f").entry.xattrs.size() == 1);
  const std::string with_mask = version + entry(1, 6) + entry(4, 4) + entry(16, 4) + entry(32, 4);
  CHECK(read_tar(file("access", with_mask)).at("f").entry.xattrs.size() == 1);
  for (const std::string& wrong :
       {std::string("\1\0\0\0", 4), minimal + "x", version + entry(1, 6) + entry(2, 4, 5) + entry(4, 4) + entry(32, 4),
        version + entry(4, 4) + entry(1, 6) + entry(32, 4), version + entry(1, 6) + entry(4, 4),
        version + entry(1, 8) + entry(4, 4) + entry(32, 4), minimal + entry(0x77, 7),
        version + entry(1, 6) + entry(2, 4) + entry(4, 4) + entry(16, 4) + entry(32, 4), minimal + entry(32, 4)})
    CHECK(refusal_of(file("access", wrong)).find("no POSIX ACL that Linux takes") != std::string::npos);
}

TEST_CASE("sparse files of every form become plain ones", "[layers][archive]") {
  const std::string want = std::string(1000, '\0') + "abc" + std::string(997, '\0') + "de" + std::string(98, '\0');
  TarBuilder tar;
  tar.file("v00", "abcde",
           {.pax = {{"GNU.sparse.size", "2100"},
                    {"GNU.sparse.numblocks", "2"},
                    {"GNU.sparse.offset", "1000"},
                    {"GNU.sparse.numbytes", "3"},
                    {"GNU.sparse.offset", "2000"},
                    {"GNU.sparse.numbytes", "2"}}});
  tar.file("GNUSparseFile.1/v01", "abcde",
           {.pax = {{"GNU.sparse.size", "2100"}, {"GNU.sparse.name", "v01"}, {"GNU.sparse.map", "1000,3,2000,2"}}});
  std::string map = "2\n1000\n3\n2000\n2\n";
  map.resize(512, '\0');
  tar.file("GNUSparseFile.1/v10", map + "abcde",
           {.pax = {{"GNU.sparse.major", "1"},
                    {"GNU.sparse.minor", "0"},
                    {"GNU.sparse.name", "v10"},
                    {"GNU.sparse.realsize", "2100"}}});
  TarBuilder old;
  old.raw("old", {.type = 'S', .data = "abcde", .magic = std::string("ustar  \0", 8)});
  std::string block = old.body();
  const auto put = [&](std::size_t at, const std::string& digits) { block.replace(at, digits.size(), digits); };
  put(386, "00000001750");
  put(398, "00000000003");
  put(410, "00000003720");
  put(422, "00000000002");
  put(483, "00000004064");
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(block[i]);
  char digits[16];
  std::snprintf(digits, sizeof digits, "%06o", sum);
  put(148, digits);
  const RecordedTree tree = read_tar(tar.body() + block + std::string(1024, '\0'));
  CHECK(tree.listing() == "old v00 v01 v10");
  for (const char* name : {"v00", "v01", "v10", "old"}) CHECK(tree.content(name) == want);
}

TEST_CASE("sparse files with many pieces are read as GNU tar writes them", "[layers][archive]") {
  const TempDirectory work(std::filesystem::temp_directory_path());
  std::string content(2 << 20, '\0');
  for (std::size_t at = 0; at < content.size(); at += 64 << 10) content.replace(at, 4, "data");
  {
    const UniqueFd file = open_file(work.path() / "sparse", O_WRONLY | O_CREAT);
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(content.size())) == 0);
    for (std::size_t at = 0; at < content.size(); at += 64 << 10)
      REQUIRE(::pwrite(file.get(), "data", 4, static_cast<off_t>(at)) == 4);
  }
  for (const std::vector<std::string>& form : std::vector<std::vector<std::string>>{
           {"--format=gnu"}, {"--sparse-version=0.0"}, {"--sparse-version=0.1"}, {"--sparse-version=1.0"}}) {
    std::vector<std::string> argv = {"tar", "--sparse"};
    if (form[0] != "--format=gnu") argv.push_back("--format=pax");
    argv.insert(argv.end(), {form[0], "-C", work.path(), "-cf", "-", "sparse"});
    const CommandResult archived = run_command({.argv = argv});
    REQUIRE(archived.status.ok());
    CHECK(archived.out.size() < content.size());
    CHECK(read_tar(archived.out).content("sparse") == content);
  }
}

TEST_CASE("long names of PAX and of GNU are understood", "[layers][archive]") {
  const std::string name = std::string(200, 'n') + "/" + std::string(244, 'm'), target(1203, 't');
  TarBuilder tar;
  tar.raw("././@LongLink", {.type = 'L', .data = name + '\0'});
  tar.raw("././@LongLink", {.type = 'K', .data = target + '\0'});
  tar.raw(name.substr(0, 100), {.type = '2', .link = target.substr(0, 100)});
  tar.file(name + "x", "pax");
  const RecordedTree tree = read_tar(tar);
  CHECK(tree.at(name).entry.target == target);
  CHECK(tree.content(name + "x") == "pax");
}

TEST_CASE("unknown records, and names in global headers, change nothing", "[layers][archive]") {
  TarBuilder tar;
  tar.extended('g', TarBuilder::record("comment", std::string(1500, 'x')) + TarBuilder::record("path", "evil"));
  tar.file("one", "1", {.pax = {{"VENDOR.key", std::string(3000, 'v')}}});
  CHECK(read_tar(tar).listing() == "one");
}

TEST_CASE("no global header changes the content of what follows", "[layers][archive]") {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"GNU.sparse.size", "9999"},
                                                                                   {"GNU.sparse.realsize", "9999"},
                                                                                   {"SCHILY.realsize", "9999"},
                                                                                   {"GNU.sparse.name", "evil"},
                                                                                   {"GNU.sparse.major", "1"},
                                                                                   {"GNU.sparse.map", "1,2"},
                                                                                   {"SCHILY.devminor", "9"}}) {
    INFO(key);
    TarBuilder tar;
    tar.extended('g', TarBuilder::record(key, value));
    tar.file("a", "1").file("b", "22").add("c", {.type = '3', .major = 1, .minor = 3});
    const RecordedTree tree = read_tar(tar);
    CHECK(tree.listing() == "a b c");
    CHECK(tree.content("a") == "1");
    CHECK(tree.content("b") == "22");
    CHECK(tree.at("c").entry.minor == 3);
  }
}

TEST_CASE("global headers count for what follows in a plain archive, and can be taken back", "[layers][archive]") {
  TarBuilder tar;
  tar.extended('g',
               TarBuilder::record("uid", "55") + TarBuilder::record("mtime", "-1.5") + TarBuilder::record("size", "9"));
  tar.file("a", "1").file("b", "22", {.pax = {{"uid", "66"}}}).file("c", "3", {.pax = {{"uid", ""}}});
  tar.extended('g', TarBuilder::record("uid", "") + TarBuilder::record("gid", "7"));
  tar.file("d", "4");
  const RecordedTree tree = read_tar(tar);
  CHECK(tree.at("a").entry.uid == 55);
  CHECK(tree.at("a").entry.mtime == Timestamp{-2, 500'000'000});
  CHECK(tree.at("b").entry.uid == 66);
  CHECK(tree.content("b") == "22");
  CHECK(tree.at("c").entry.uid == 0);
  CHECK(tree.at("d").entry.uid == 0);
  CHECK(tree.at("d").entry.gid == 7);
}

TEST_CASE("the last of several records and long names counts, and an empty one takes back", "[layers][archive]") {
  TarBuilder tar;
  tar.extended('x', TarBuilder::record("uid", "5") + TarBuilder::record("uid", "") + TarBuilder::record("path", "no") +
                        TarBuilder::record("path", "yes") + TarBuilder::record("mtime", "5") +
                        TarBuilder::record("mtime", ""));
  tar.raw("f", {.uid = "11", .mtime = "20"});
  for (const char* name : {"first", "second"})
    tar.raw("././@LongLink", {.type = 'L', .data = name + std::string(1, '\0')});
  tar.raw("short", {});
  const RecordedTree tree = read_tar(tar);
  CHECK(tree.listing() == "second yes");
  CHECK(tree.at("yes").entry.uid == 9);
  CHECK(tree.at("yes").entry.mtime == Timestamp{16, 0});
}

TEST_CASE("of several extended headers in a row the last counts, and a long name between them stays",
          "[layers][archive]") {
  TarBuilder tar;
  tar.extended('x', TarBuilder::record("path", "one") + TarBuilder::record("gid", "5") +
                        TarBuilder::record("SCHILY.xattr.user.a", "1"));
  tar.raw("././@LongLink", {.type = 'L', .data = "long" + std::string(1, '\0')});
  tar.extended('x', TarBuilder::record("uid", "6"));
  tar.raw("short", {});
  const RecordedTree tree = read_tar(tar);
  CHECK(tree.listing() == "long");
  CHECK(tree.at("long").entry.uid == 6);
  CHECK(tree.at("long").entry.gid == 0);
  CHECK(tree.at("long").entry.xattrs.empty());
}

TEST_CASE("a slash at the end of a name makes a directory only of what has no content", "[layers][archive]") {
  const RecordedTree tree = read_tar(TarBuilder()
                                         .file("file/", "content")
                                         .raw("old/", {.type = '\0', .mode = 0755, .data = "passed over"})
                                         .raw("new/", {.mode = 0755})
                                         .file("after", "x"));
  CHECK(tree.listing() == "after file new/ old/");
  CHECK(tree.content("file") == "content");
}

TEST_CASE("an archive whose first name looks like a packing's magic number is an archive", "[layers][archive]") {
  for (const std::string& name : {std::string("BZh9"), std::string("\x1f\x8b\x08"), std::string("\xfd") + "7zXZ",
                                  std::string("\x50\x2a\x4d\x18"), std::string("\x28\xb5") + "#\xfd"}) {
    INFO(name);
    CHECK(read_tar(TarBuilder().file(name, "x").file("after", "y")).content(name) == "x");
  }
}

TEST_CASE("ids that mean none are refused", "[layers][archive]") {
  CHECK(refusal_of(TarBuilder().file("f", "", {.pax = {{"uid", "4294967295"}}})).find("has the owner 4294967295") !=
        std::string::npos);
  CHECK(refusal_of(TarBuilder().raw("f", {.gid = std::string(8, '\xff')})).find("has the group -1") !=
        std::string::npos);
  CHECK(read_tar(TarBuilder().file("f", "", {.pax = {{"uid", "4294967294"}}})).at("f").entry.uid == 4294967294);
}

TEST_CASE("extended attributes that an entry cannot have are left out or refused", "[layers][archive]") {
  const RecordedTree tree = read_tar(TarBuilder()
                                         .add("s", {.type = '2', .link = "x", .pax = {{"SCHILY.xattr.user.a", "1"}}})
                                         .add("p", {.type = '6', .pax = {{"SCHILY.xattr.user.a", "1"}}})
                                         .dir("d", 0755, {.pax = {{"SCHILY.xattr.user.a", "1"}}}));
  CHECK(tree.at("s").entry.xattrs.empty());
  CHECK(tree.at("p").entry.xattrs.empty());
  CHECK(tree.at("d").entry.xattrs.size() == 1);
  const auto refused = [](const std::vector<std::pair<std::string, std::string>>& records, std::string_view why) {
    const std::string text = refusal_of(TarBuilder().file("f", "", {.pax = records}));
    INFO(text);
    CHECK(text.find("entry-not-representable: entry 'f' has ") != std::string::npos);
    CHECK(text.find(why) != std::string::npos);
  };
  refused({{"SCHILY.xattr.security.capability", "x"}}, "no file capability");
  // mkfs.erofs writes an image that cannot be read of these.
  std::vector<std::pair<std::string, std::string>> large, many;
  for (char c = 'a'; c <= 'f'; ++c)
    large.emplace_back("SCHILY.xattr.user." + std::string(1, c), std::string(50'000, c));
  refused(large, "more than the 262148 that EROFS can hold");
  for (int i = 0; i < 300; ++i) many.emplace_back("SCHILY.xattr.user." + std::string(240, 'n') + std::to_string(i), "");
  refused(many, "more than the 65536 that Linux can list");
}

TEST_CASE("a symlink has the permissions that Linux gives every symlink", "[layers][archive]") {
  CHECK(read_tar(TarBuilder().add("s", {.type = '2', .mode = 0644, .link = "t"})).at("s").entry.mode == 0777);
}

TEST_CASE("device numbers are neither cut nor zeroed", "[layers][archive]") {
  const RecordedTree tree = read_tar(TarBuilder()
                                         .add("null", {.type = '3', .major = 1, .minor = 3})
                                         .add("big", {.type = '4', .major = 4095, .minor = 1048575})
                                         .add("pipe", {.type = '6'}));
  CHECK(tree.at("big").entry.major == 4095);
  CHECK(tree.at("big").entry.minor == 1048575);
  CHECK(tree.at("pipe").entry.type == EntryType::Fifo);
  CHECK(refusal_of(TarBuilder().add("x", {.type = '3', .major = 4096})).find("entry-not-representable") !=
        std::string::npos);
  CHECK(refusal_of(TarBuilder().add("etc/passwd", {.type = '3'})).find("'etc/passwd' is the character device 0:0") !=
        std::string::npos);
}

TEST_CASE("hostile paths are refused by name", "[layers][archive]") {
  CHECK(refusal_of(TarBuilder().file("a/../../x")).find("path-escapes-root: entry 'a/../../x'") != std::string::npos);
  CHECK(refusal_of(TarBuilder().hardlink("x", "../../etc/passwd")).find("path-escapes-root") != std::string::npos);
  CHECK(refusal_of(TarBuilder().hardlink("x", "nothing")).find("hardlink-target-missing: entry 'x'") !=
        std::string::npos);
  CHECK(refusal_of(TarBuilder().dir("d").hardlink("x", "d")).find("hardlink-target-missing") != std::string::npos);
  CHECK(refusal_of(TarBuilder().symlink("out", "/etc").file("out/passwd"))
            .find("entry 'out/passwd' leads through the symlink 'out'") != std::string::npos);
  CHECK(refusal_of(TarBuilder().symlink("out", "..").hardlink("x", "out/y")).find("path-escapes-root") !=
        std::string::npos);
  CHECK(refusal_of(TarBuilder().file("f").file("f/x")).find("entry 'f/x' lies below 'f'") != std::string::npos);
  CHECK(refusal_of(TarBuilder().file(std::string(256, 'n'))).find("longer than the 255 bytes") != std::string::npos);
  CHECK(read_tar(TarBuilder().file(std::string(255, 'n'))).has(std::string(255, 'n')));
}

TEST_CASE("damaged, truncated and foreign bytes are refused", "[layers][archive]") {
  const std::string whole = TarBuilder().file("a", std::string(2000, 'a')).file("b", "b").str();
  CHECK(refusal_of(whole.substr(0, 1000)).find("layer-truncated: the archive ends within the content of entry 'a'") !=
        std::string::npos);
  CHECK(refusal_of(whole.substr(0, 2800)).find("layer-truncated") != std::string::npos);
  CHECK(refusal_of("#!/bin/sh\necho hello\n").find("this is no tar archive") != std::string::npos);
  CHECK(refusal_of(std::string(2000, 'x')).find("this is no tar archive") != std::string::npos);
  std::string flipped = whole;
  flipped[2560] ^= 1;
  CHECK(refusal_of(flipped).find("layer-damaged: the tar archive is damaged after entry 'a'") != std::string::npos);
  CHECK(read_tar("").listing().empty());
  CHECK(read_tar(whole.substr(0, 2560)).listing() == "a");
  CHECK(refusal_of(whole.substr(0, 2512)).find("layer-truncated: the archive ends within the padding of entry 'a'") !=
        std::string::npos);
}

TEST_CASE("an archive that changes between verifying and writing is refused", "[layers][archive]") {
  const TempDirectory work(std::filesystem::temp_directory_path());
  const std::string file = (work.path() / "in.tar").native();
  write_file_atomic(file, TarBuilder().file("a", "old").str());
  TarSource source(file, work.path());
  Progress progress;
  source.examine({}, progress);
  write_all(open_file(file, O_WRONLY | O_APPEND).get(), "more");
  RecordedTree tree;
  CHECK_THROWS_AS(source.emit(0, tree), Error);
}

TEST_CASE("each limit is kept", "[layers][archive]") {
  const std::string tar = TarBuilder().file("a", std::string(5000, 'a')).file("b/cccc", "b").str();
  CHECK(refusal_of(tar, {.limits = {.unpacked_bytes = 4000}}).find("size-limit") != std::string::npos);
  CHECK(refusal_of(tar, {.limits = {.entries = 1}}).find("entry-limit") != std::string::npos);
  CHECK(refusal_of(tar, {.limits = {.path_bytes = 5}}).find("path-limit: entry 'b/cccc'") != std::string::npos);
  const std::string bomb =
      TarBuilder()
          .file("GNUSparseFile.1/x", "a",
                {.pax = {{"GNU.sparse.size", "1000000000000"}, {"GNU.sparse.name", "x"}, {"GNU.sparse.map", "0,1"}}})
          .str();
  CHECK(refusal_of(bomb).find("size-limit") != std::string::npos);
}

TEST_CASE("the last of several entries wins, and a link made before keeps what it had", "[layers][archive]") {
  const RecordedTree tree = read_tar(TarBuilder()
                                         .file("f", "old")
                                         .hardlink("link", "f")
                                         .file("f", "new")
                                         .dir("d", 0700)
                                         .file("d/x", "x")
                                         .dir("d", 0711)
                                         .file("s", "file")
                                         .symlink("s", "d"));
  CHECK(tree.listing() == "d/ d/x f link s->d");
  CHECK(tree.content("link") == "old");
  CHECK(tree.content("f") == "new");
  CHECK(tree.at("d").entry.mode == 0711);
}

TEST_CASE("hard links may name later entries, links and odd types", "[layers][archive]") {
  const RecordedTree tree = read_tar(TarBuilder()
                                         .hardlink("a", "b")
                                         .hardlink("b", "c")
                                         .file("c", "content")
                                         .symlink("s", "nowhere")
                                         .hardlink("s2", "s")
                                         .add("p", {.type = '6'})
                                         .hardlink("p2", "p")
                                         .hardlink("c", "c"));
  CHECK(tree.listing() == "a b=>a c=>a p p2=>p s->nowhere s2=>s");
  CHECK(tree.content("c") == "content");
}
