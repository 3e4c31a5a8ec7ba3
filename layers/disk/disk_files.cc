#include "layers/disk/disk_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "layers/overlaybd/uuid.h"
#include "layers/overlaybd/writable_layer.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

constexpr char kStack[] = "stack.json";
constexpr std::uint64_t kFormat = 1;

}  // namespace

DiskFacts DiskFacts::read(const fs::path& disk) {
  const fs::path file = disk / kStack;
  const Json json = parse_json(read_file(file), file.native());
  if (const std::uint64_t format = json_u64(json, "format"); format != kFormat)
    throw failure(quote(file.native()) + " has format " + std::to_string(format) + ", of another version of dsec");
  DiskFacts facts;
  facts.size = json_u64(json, "size");
  facts.top = json_u64_or(json, "top", 0);
  try {
    facts.below = json.at("below").get<std::vector<std::string>>();
    facts.layers = json.at("layers").get<std::vector<std::uint64_t>>();
  } catch (const Json::exception&) {
    throw failure(quote(file.native()) + " does not tell the layers of a disk");
  }
  return facts;
}

std::string DiskFacts::text() const {
  Json json{{"format", kFormat}, {"size", size}, {"below", below}, {"layers", layers}};
  if (top != 0) json["top"] = top;
  return canonical_json(json) + "\n";
}

void DiskFacts::write(const fs::path& disk) const { write_file_atomic(disk / kStack, text()); }

void DiskFacts::write_new(const fs::path& disk) const {
  const UniqueFd file = open_file(disk / kStack, O_WRONLY | O_CREAT | O_EXCL, 0644);
  write_all(file.get(), text());
}

fs::path layer_file(const fs::path& disk, std::uint64_t number) { return disk / (std::to_string(number) + ".obd"); }
fs::path index_file(const fs::path& disk, std::uint64_t number) { return disk / (std::to_string(number) + ".index"); }

void make_top(const fs::path& disk, std::uint64_t number, std::uint64_t size, const std::string& parent) {
  const auto make = [](const fs::path& path) {
    // What a killed attempt left has nothing in it.
    return open_file(path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  };
  const UniqueFd data = make(layer_file(disk, number)), index = make(index_file(disk, number));
  overlaybd::LayerHeader header;
  header.size = size;
  header.uuid = overlaybd::random_uuid();
  header.parent = parent;
  overlaybd::WritableLayer::create(data.get(), index.get(), header);
}

void sync_top(const fs::path& disk, std::uint64_t number) {
  for (const fs::path& path : {layer_file(disk, number), index_file(disk, number)}) {
    const UniqueFd file = open_file(path, O_RDONLY | O_NOFOLLOW);
    if (::fsync(file.get()) != 0) throw system_error("write " + quote(path.native()));
  }
}

void remove_unnamed(const fs::path& disk, const DiskFacts& facts) {
  std::set<std::string> named{kStack};
  for (const std::uint64_t number : facts.layers) {
    named.insert(layer_file("", number).native());
    // Of one that may not be whole on the disk yet.
    named.insert(index_file("", number).native());
  }
  named.insert(layer_file("", facts.top).native());
  named.insert(index_file("", facts.top).native());
  for (const auto& entry : fs::directory_iterator(disk))
    if (!named.contains(entry.path().filename().native())) remove_tree(entry.path());
}

}  // namespace dsec::layers
