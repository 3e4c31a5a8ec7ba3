#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/progress.h"
#include "core/engine/layer_store.h"
#include "core/model/layer_manifest.h"
#include "layers/import.h"

namespace dsec::layers {

/// What the first bytes of a machine's disk say of it.
struct DiskHeader {
  std::string format;      ///< "raw", "qcow2"
  std::uint64_t size = 0;  ///< of the disk in bytes
};

/// Throws Error naming `origin` for an image that is not whole without another file, is encrypted, was not closed, or
/// is of a kind that is not known here. What is of no known kind is "raw". The format of qcow2 is that of QEMU's
/// docs/interop/qcow2.txt.
DiskHeader read_disk_header(int fd, std::string_view origin);

/// The disk of a machine as a person names it: "disk:FILE[?firmware=uefi&agent=yes]", man/dsec-sources.7.md.
struct DiskRequest {
  std::filesystem::path file;
  std::string firmware = "bios";
  bool agent = false;

  static bool is_one(std::string_view text) { return text.starts_with("disk:"); }
  /// Throws Error (Usage).
  static DiskRequest parse(std::string_view text);
};

/// Takes a disk as it is into the store, as a base layer of one blob. Holes stay holes. Of `options` only name, tag,
/// platform and labels count.
engine::StoredLayer import_disk(engine::LayerStore& store, const DiskRequest& request, const ImportOptions& options,
                                Progress& progress);

/// The same of an open file, which is recorded as made in this way.
engine::StoredLayer store_disk(engine::LayerStore& store, int file, DiskForm form, Provenance provenance,
                               const ImportOptions& options, Progress& progress);

/// Throws Error unless `file` is what `form` says: the blob of a layer that came from elsewhere.
void check_disk(const std::filesystem::path& file, const DiskForm& form);

}  // namespace dsec::layers
