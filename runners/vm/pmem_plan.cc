#include "runners/vm/pmem_plan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "core/engine/mapped_blob.h"
#include "runners/vm/machine_spec.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

static_assert(kPmemAlignment == engine::kMappedUnit);

// The guest's kernel has 64 bytes of its own memory for each page of 4 KiB, whether or not the page is ever read.
constexpr std::uint64_t kBytesPerStructure = 4096 / 64;
// What that may take of a guest's memory: where nobody has asked for it, and where somebody has.
constexpr std::uint64_t kUnasked = 16, kAsked = 4;
// What a cache of the guest's own has of an image with less is not worth another machine.
constexpr std::uint64_t kWorthwhile = 16ull << 20;

std::uint64_t bytes_of(const fs::path& file) {
  struct stat status;
  if (::stat(file.c_str(), &status) != 0) throw system_error("stat " + quote(file.native()));
  return static_cast<std::uint64_t>(status.st_size);
}

bool lies_below(const fs::path& file, const fs::path& place) { return file.native().starts_with(place.native() + "/"); }

bool can_be_mapped(const engine::ImageFiles& image, const fs::path& store) {
  return image.data && lies_below(image.meta, store) && lies_below(*image.data, store);
}

}  // namespace

std::vector<bool> choose_mapped(PmemUse use, const std::vector<engine::ImageFiles>& images, const fs::path& store,
                                std::uint64_t memory) {
  std::vector<bool> chosen(images.size());
  if (use == PmemUse::Off) return chosen;
  std::uint64_t bytes = 0, count = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (!can_be_mapped(images[i], store)) continue;
    const std::uint64_t data = bytes_of(*images[i].data);
    const std::uint64_t sum = bytes + engine::mapped_size(bytes_of(images[i].meta)) + engine::mapped_size(data);
    if (use == PmemUse::Auto && (engine::mapped_size(data) < kWorthwhile ||
                                 sum / kBytesPerStructure > memory / kUnasked || count == kMostMapped))
      continue;
    bytes = sum;
    ++count;
    chosen[i] = true;
  }
  if (use == PmemUse::Auto) return chosen;
  if (count == 0)
    throw usage_error("none of its layers can be memory of a guest: they are compressed, or lie in a registry")
        .hint("dsec import --compress none, a registry that was added without --in-place, or --pmem auto");
  if (count > kMostMapped)
    throw usage_error("its layers have " + std::to_string(count) + " images, and at most " +
                      std::to_string(kMostMapped) + " can be memory of a guest")
        .hint("--pmem auto; importing with a larger --collapse-limit makes fewer of them");
  if (bytes / kBytesPerStructure > memory / kAsked)
    throw usage_error("for layers of " + format_size(bytes) + " the guest's kernel needs " +
                      format_size(bytes / kBytesPerStructure) + " of its memory of " + format_size(memory))
        .hint("--memory " + std::to_string((bytes / kBytesPerStructure * kAsked >> 20) + 1) + "MiB, or --pmem auto");
  return chosen;
}

std::uint64_t make_mappable(const fs::path& file) {
  const std::uint64_t size = bytes_of(file), wanted = engine::mapped_size(size);
  if (size == wanted) return size;
  const UniqueFd open = open_file(file, O_WRONLY | O_NOFOLLOW);
  if (::ftruncate(open.get(), static_cast<off_t>(wanted)) != 0) throw system_error("lengthen " + quote(file.native()));
  return wanted;
}

}  // namespace dsec::runners
