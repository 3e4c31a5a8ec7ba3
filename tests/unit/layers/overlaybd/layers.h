#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/base/progress.h"
#include "layers/overlaybd/commit.h"
#include "layers/overlaybd/create.h"
#include "layers/overlaybd/stack.h"

/// Catch2 shows the whole chain of an unexpected Error.
CATCH_TRANSLATE_EXCEPTION(dsec::Error& error) { return error.message(); }

/// Layers of OverlayBD for tests, in a directory of their own.
namespace dsec::testing {

namespace obd = layers::overlaybd;

class Layers {
 public:
  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }
  std::vector<std::filesystem::path> paths(const std::vector<std::string>& names) const {
    std::vector<std::filesystem::path> paths;
    for (const auto& name : names) paths.push_back(path(name));
    return paths;
  }

  /// Empty: NAME.data and NAME.index.
  void writable(const std::string& name, std::uint64_t size, const std::string& uuid = "",
                const std::string& parent = "") {
    obd::LayerHeader facts;
    facts.size = size;
    facts.uuid = uuid;
    facts.parent = parent;
    const UniqueFd data = open_file(path(name + ".data"), O_RDWR | O_CREAT | O_EXCL);
    const UniqueFd index = open_file(path(name + ".index"), O_RDWR | O_CREAT | O_EXCL);
    obd::WritableLayer::create(data.get(), index.get(), facts);
  }
  obd::WritableLayer open(const std::string& name,
                          obd::WritableLayer::Access access = obd::WritableLayer::Access::Write) {
    return {path(name + ".data"), path(name + ".index"), access};
  }
  obd::Written commit(const std::vector<std::string>& files, const std::string& out, const obd::NewLayer& layer = {}) {
    const UniqueFd file = open_file(path(out), O_RDWR | O_CREAT | O_TRUNC);
    return obd::commit(stack(files), file.get(), layer, silent_);
  }
  obd::Stack stack(const std::vector<std::string>& files) { return obd::Stack::open(paths(files)); }

  std::string bytes(const std::string& name) const { return read_file(path(name)); }
  void write(const std::string& name, std::string_view bytes) {
    const UniqueFd file = open_file(path(name), O_RDWR | O_CREAT | O_TRUNC);
    write_all(file.get(), bytes);
  }
  Progress& silent() { return silent_; }

 private:
  TempDirectory directory_{std::filesystem::temp_directory_path()};
  Progress silent_;
};

inline std::string device_of(const obd::Stack& stack) {
  std::string bytes(static_cast<std::size_t>(stack.size()), '?');
  stack.read(0, bytes.data(), bytes.size());
  return bytes;
}

inline std::string sectors(std::size_t count, char fill) { return std::string(count * obd::kSector, fill); }

/// Half of it repeats, so that it compresses a little.
inline std::string noise(std::mt19937& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = i % 16 < 8 ? 'x' : static_cast<char>(random());
  return bytes;
}

}  // namespace dsec::testing
