#pragma once

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/erofs/mkfs.h"
#include "tests/support/test_store.h"

/// Catch2 shows the whole chain of an unexpected Error.
CATCH_TRANSLATE_EXCEPTION(dsec::Error& error) { return error.message(); }

/// Small EROFS images and layers for tests, made by the real mkfs.erofs from a tar in memory.
namespace dsec::testing {

/// One entry of a test tree, in tar's words: type is '0' file, '1' hard link, '2' symlink, '3' char device, '5'
/// directory, '6' FIFO.
struct TestEntry {
  std::string path;
  char type = '0';
  std::string content;  ///< of a file; of a link: its target
  unsigned mode = 0644, uid = 0, gid = 0;
  long mtime = 1'000'000'000;
  std::map<std::string, std::string> xattrs;
  unsigned major = 0, minor = 0;
};

inline TestEntry dir(std::string path, unsigned mode = 0755) {
  return {.path = std::move(path), .type = '5', .mode = mode};
}
inline TestEntry file(std::string path, std::string content = "", unsigned mode = 0644) {
  return {.path = std::move(path), .content = std::move(content), .mode = mode};
}
inline TestEntry link_to(std::string path, std::string target) {
  return {.path = std::move(path), .type = '2', .content = std::move(target), .mode = 0777};
}
inline TestEntry whiteout(std::string path) { return {.path = std::move(path), .type = '3', .mode = 0}; }
inline TestEntry opaque_dir(std::string path) {
  return {.path = std::move(path), .type = '5', .mode = 0755, .xattrs = {{"trusted.overlay.opaque", "y"}}};
}

inline void append_tar_block(std::string& tar, const TestEntry& entry, char type, const std::string& name,
                             const std::string& content) {
  char header[512] = {};
  const bool is_link = type == '1' || type == '2';
  const std::size_t size = is_link || type == '5' || type == '3' || type == '6' ? 0 : content.size();
  std::strncpy(header, name.c_str(), 100);
  std::snprintf(header + 100, 8, "%07o", entry.mode);
  std::snprintf(header + 108, 8, "%07o", entry.uid);
  std::snprintf(header + 116, 8, "%07o", entry.gid);
  std::snprintf(header + 124, 12, "%011lo", static_cast<unsigned long>(size));
  std::snprintf(header + 136, 12, "%011lo", static_cast<unsigned long>(entry.mtime));
  header[156] = type;
  if (is_link) std::strncpy(header + 157, content.c_str(), 100);
  std::memcpy(header + 257, "ustar\00000", 8);
  std::snprintf(header + 329, 8, "%07o", entry.major);
  std::snprintf(header + 337, 8, "%07o", entry.minor);
  std::memset(header + 148, ' ', 8);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(header + 148, 8, "%06o", sum);
  tar.append(header, sizeof header);
  if (size) {
    tar += content;
    tar.append((512 - size % 512) % 512, '\0');
  }
}

inline std::string to_tar(const std::vector<TestEntry>& tree) {
  std::string tar;
  for (const TestEntry& entry : tree) {
    std::string records;
    const auto record = [&](const std::string& key, const std::string& value) {
      const std::string body = " " + key + "=" + value + "\n";
      std::size_t length = body.size() + 1;
      while (std::to_string(length).size() + body.size() != length) ++length;
      records += std::to_string(length) + body;
    };
    if (entry.path.size() > 99) record("path", entry.path);
    for (const auto& [name, value] : entry.xattrs) record("SCHILY.xattr." + name, value);
    if (!records.empty()) append_tar_block(tar, {.mtime = 0}, 'x', "pax", records);
    append_tar_block(tar, entry, entry.type, entry.path.substr(0, 99), entry.content);
  }
  return tar + std::string(1024, '\0');
}

inline std::string mkfs_program() { return layers::Mkfs::find().program.native(); }

/// Writes DIRECTORY/NAME.meta and, unless `compression` is given, DIRECTORY/NAME.data.
inline void make_image(const std::filesystem::path& directory, const std::string& name,
                       const std::vector<TestEntry>& tree, const std::string& compression = "") {
  const std::filesystem::path meta = directory / (name + ".meta"), data = directory / (name + ".data");
  std::vector<std::string> argv = {
      mkfs_program(), "--tar=f", "--quiet", "-b4096", "-T0", "--mkfs-time", "-U00000000-0000-4000-8000-000000000001"};
  if (compression.empty())
    argv.insert(argv.end(),
                {"-Enoinline_data,force-chunk-indexes", "--chunksize=262144", "--blobdev=" + data.native()});
  else
    argv.push_back("-z" + compression);
  argv.insert(argv.end(), {meta.native(), "-"});
  // mkfs.erofs reads a tar from standard input when it is given no name.
  argv.pop_back();
  const CommandResult made = run_command({.argv = argv}, to_tar(tree));
  INFO(made.err);
  REQUIRE(made.status.ok());
}

/// A store whose layers are made of trees.
class ImageStore : public TestStore {
 public:
  using TestStore::TestStore;

  /// A trusted layer with one image for each tree.
  engine::StoredLayer add_layer(const std::string& name, const std::vector<std::vector<TestEntry>>& trees,
                                std::vector<std::string> implicit_parents = {}, const std::string& compression = "") {
    LayerManifest manifest{LayerName::parse(name), "linux/amd64", {}, {}, {}, std::move(implicit_parents)};
    for (const auto& tree : trees) {
      make_image(directory_, "new", tree, compression);
      LayerImage image{{take(directory_ / "new.meta", BlobRole::Meta)}, compression.empty() ? "none" : compression, ""};
      if (compression.empty()) image.blobs.push_back(take(directory_ / "new.data", BlobRole::Data));
      manifest.images.push_back(std::move(image));
    }
    return {.digest = manifest.digest(), .manifest = manifest, .trusted = true};
  }
};

}  // namespace dsec::testing
