#include "layers/compose/stack_record.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "layers/compose/conflicts.h"
#include "layers/compose/directory_image.h"
#include "layers/compose/fixup.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

// Raised when what a record says would be found out differently by a newer dsec.
constexpr int kVersion = 1;
constexpr std::size_t kKnownLimit = 10000;
constexpr auto kKeep = std::chrono::hours(24 * 30);

std::string key_of(std::span<const engine::StoredLayer> bottom_to_top) {
  std::string text = "dsec stack " + std::to_string(kVersion) + "\n";
  for (const engine::StoredLayer& layer : bottom_to_top) text += layer.digest.hex() + "\n";
  return Digest::of(text).hex();
}

// So that remove_old() can tell when it was last asked for.
void touch(const fs::path& path) { (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW); }

void remove_old_in(const fs::path& folder) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error))
    if (const auto written = file.last_write_time(error); !error && fs::file_time_type::clock::now() - written > kKeep)
      fs::remove(file.path(), error);
}

}  // namespace

StackRecords::StackRecords(fs::path cache, engine::LayerStore& store) : cache_(std::move(cache)), store_(store) {}

std::shared_ptr<const StackRecord> StackRecords::of(std::span<const engine::StoredLayer> bottom_to_top) {
  const std::string key = key_of(bottom_to_top);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
  }
  if (std::optional<StackRecord> record = load(key)) return remember(std::move(*record));
  return again(bottom_to_top);
}

std::shared_ptr<const StackRecord> StackRecords::again(std::span<const engine::StoredLayer> bottom_to_top) {
  return remember(make(key_of(bottom_to_top), bottom_to_top));
}

std::shared_ptr<const StackRecord> StackRecords::remember(StackRecord record) {
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kKnownLimit) known_.clear();
  const auto kept = std::make_shared<const StackRecord>(std::move(record));
  known_[kept->key] = kept;
  return kept;
}

std::optional<StackRecord> StackRecords::load(const std::string& key) const {
  const fs::path path = record_path(key);
  if (!fs::exists(path)) return std::nullopt;
  try {
    const Json json = parse_json(read_file(path, 16 << 20), path.native());
    StackRecord record{.key = key, .images = {}, .conflicts = json_u64(json, "conflicts"), .fixup = {}};
    for (const Json& image : json.at("images")) record.images.push_back(image.get<std::string>());
    if (json.at("fixup").get<bool>()) {
      record.fixup = fixup_path(key);
      if (!fs::exists(*record.fixup)) return std::nullopt;
      touch(*record.fixup);
    }
    touch(path);
    return record;
  } catch (const Error&) {
  } catch (const Json::exception&) {
  }
  return std::nullopt;  // damaged: a cache is made anew
}

StackRecord StackRecords::make(const std::string& key, std::span<const engine::StoredLayer> bottom_to_top) {
  StackRecord record{.key = key, .images = {}, .conflicts = 0, .fixup = {}};
  for (const engine::StoredLayer& layer : bottom_to_top)
    for (const LayerImage& image : layer.manifest.images)
      record.images.push_back(image.blob(BlobRole::Meta).digest.hex());
  if (bottom_to_top.size() > 1) {
    record.conflicts = find_conflicts(store_, bottom_to_top).size();
    if (const auto fixups = find_fixups(store_, bottom_to_top); !fixups.empty()) {
      record.fixup = fixup_path(key);
      make_directories(cache_ / "fixup", 0700);
      write_file_atomic(*record.fixup, make_directory_image(fixups), 0600);
    }
  }
  const Json json = {{"conflicts", record.conflicts}, {"fixup", record.fixup.has_value()}, {"images", record.images}};
  make_directories(cache_ / "stacks", 0700);
  write_file_atomic(record_path(key), canonical_json(json) + "\n", 0600);
  return record;
}

std::vector<std::string> StackRecords::images_of(const std::string& key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) return found->second->images;
  }
  const auto record = load(key);
  return record ? record->images : std::vector<std::string>();
}

void StackRecords::remove_old() {
  remove_old_in(cache_ / "stacks");
  remove_old_in(cache_ / "fixup");
}

}  // namespace dsec::layers
