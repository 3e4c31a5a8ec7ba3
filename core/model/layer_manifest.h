#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/json.h"
#include "core/model/layer_ref.h"

namespace dsec {

/// What a blob of an image is: "meta" (EROFS metadata, or the whole image when it is compressed), "data" (file contents
/// that meta refers to), "chunks" (32 bytes of sha256 per 64 KiB of data), "disk" (a disk of a machine).
enum class BlobRole { Meta, Data, Chunks, Disk };

struct Blob {
  BlobRole role;
  Digest digest;
  std::uint64_t size;  ///< bytes
  bool operator==(const Blob&) const = default;
};

/// How a machine reads a blob that is a disk, and starts from it.
struct DiskForm {
  std::string format;             ///< "raw", "qcow2"
  std::string firmware = "bios";  ///< "bios", "uefi"
  std::uint64_t size = 0;         ///< of the disk in bytes, as a machine sees it
  bool agent = false;             ///< its system starts dsec-init: dsec-guest-channel(7)
  bool operator==(const DiskForm&) const = default;
};

/// One EROFS image: meta, and unless compressed data and chunks. Or the disk of a machine: one blob, and `disk`.
struct LayerImage {
  std::vector<Blob> blobs;
  std::string compression = "none";  ///< "none", "lz4", "zstd"
  std::string uuid;                  ///< derived from the input's digest; of a disk empty
  std::optional<DiskForm> disk = {};
  const Blob& blob(BlobRole role) const;  ///< throws Error when there is none
  const Blob* find(BlobRole role) const noexcept;
  bool operator==(const LayerImage&) const = default;
};

/// How to tell whether what an image runs is well, as Docker's image config has it. Kept, and run by nobody here.
struct HealthCheck {
  /// {"CMD", …}, {"CMD-SHELL", text} or {"NONE"}.
  std::vector<std::string> test;
  /// Nanoseconds; 0: whoever runs it decides.
  std::int64_t interval = 0, timeout = 0, start_period = 0, start_interval = 0;
  std::int64_t retries = 0;  ///< 0: whoever runs it decides
  bool operator==(const HealthCheck&) const = default;
};

/// What an OCI image config says about running it; kept and honoured at run time. The last line is Docker's, and for
/// builds on the image: the shell of RUN, CMD and ENTRYPOINT, and what a Dockerfile that is FROM it begins with.
struct ImageConfig {
  std::vector<std::string> env;  ///< "NAME=value", in order
  std::string workdir, user, stop_signal;
  std::vector<std::string> entrypoint, command;
  std::vector<std::string> exposed_ports, volumes;
  std::map<std::string, std::string> labels;
  std::optional<HealthCheck> healthcheck;
  std::vector<std::string> shell, onbuild;
  bool operator==(const ImageConfig&) const = default;
};

/// Where a layer came from: enough to build it again, nothing of the host that built it.
struct Provenance {
  std::string source;                         ///< kind of source: "oci", "tar", "dir", "git", "debootstrap", "build"
  std::map<std::string, std::string> inputs;  ///< what identifies the input: {"image": "sha256:…"}, {"commit": "…"}, …
  std::map<std::string, std::string> options;  ///< what else decided the bytes: {"to": "/workspace", "history": "past"}
  std::vector<Digest> steps;                   ///< digests of the build steps, in order
  std::optional<Digest> built_on;              ///< manifest digest of the layer that the steps ran on
  std::string mkfs;                            ///< version of mkfs.erofs
  bool operator==(const Provenance&) const = default;
};

/// What a layer is. Its canonical JSON is what the layer's digest is of; man/dsec-layer-manifest.5.md is its reference.
struct LayerManifest {
  static constexpr int kSchema = 1;

  LayerName name;
  std::string platform;            ///< "linux/amd64"
  std::vector<LayerImage> images;  ///< bottom to top
  ImageConfig config;
  Provenance provenance;
  /// Directories (relative paths, bytes) that exist only because something below them does: their attributes must not
  /// hide those of lower layers.
  std::vector<std::string> implicit_parents;
  /// Of a snapshot: the manifest digests of what it stands on, bottom to top. It is of no use without them, so they are
  /// kept, published and pulled with it.
  std::vector<Digest> lowers;

  /// Throws Error (Usage) naming `origin` and the member that is wrong; a newer schema is refused.
  static LayerManifest parse(std::string_view json, std::string_view origin);
  std::string canonical() const;
  Digest digest() const { return Digest::of(canonical()); }
  std::uint64_t total_size() const;
  /// It is the disk of a machine, and has no files that dsec reads.
  bool is_disk() const noexcept { return !images.empty() && images.front().disk.has_value(); }
  bool operator==(const LayerManifest&) const = default;
};

Json to_json(const ImageConfig& config);
ImageConfig image_config_from_json(const Json& json);

}  // namespace dsec
