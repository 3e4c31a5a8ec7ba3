#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "layers/overlaybd/sealed_layer.h"
#include "layers/overlaybd/writable_layer.h"

namespace dsec::layers::overlaybd {

/// The file of a sealed layer, or the files of a writable one.
struct LayerFiles {
  std::filesystem::path data, index;  ///< no index: sealed, or sparse
  bool writable = false;
};
/// Files, bottom first, by layer: sealed ones, and last, perhaps, a writable one, data file first. Throws Error when
/// they cannot be opened, and (Usage) when something is on top of a writable one.
std::vector<LayerFiles> group_layer_files(std::span<const std::filesystem::path> files);

/// Layers on top of each other, as one device. Reading takes a binary search, whatever the number of layers. Several
/// threads may read at once while nobody writes to the top.
class Stack {
 public:
  /// lsmt/file.h, MAX_STACK_LAYERS; a writable one comes on top.
  static constexpr std::size_t kMostSealed = 255;

  /// A run of bytes of the device, from one layer.
  struct Run {
    enum class Kind { Hole, Zero, Data };  ///< nobody's, a layer's zeros, a layer's bytes
    std::uint64_t offset, size;            ///< bytes, of the device
    Kind kind;
    std::uint8_t layer;   ///< of data: counted from the topmost sealed one; the writable one comes behind the last
    std::uint64_t place;  ///< of data: byte of that layer's file
  };

  /// `sealed` bottom first; `top` may be null. Throws Error for none and for too many.
  Stack(std::vector<SealedLayer> sealed, std::unique_ptr<WritableLayer> top);
  /// Files as group_layer_files takes them.
  static Stack open(std::span<const std::filesystem::path> files,
                    WritableLayer::Access access = WritableLayer::Access::Read);

  /// Of the device, bytes.
  std::uint64_t size() const noexcept { return size_; }
  /// Bottom first.
  const std::vector<SealedLayer>& sealed() const noexcept { return sealed_; }
  WritableLayer* top() const noexcept { return top_.get(); }
  /// Header or trailer of the highest and of the lowest layer.
  const LayerHeader& highest() const noexcept;
  const LayerHeader& lowest() const noexcept;

  /// Puts the top, which has been sealed and is `sealed` now, below another one. Takes the time of all mappings.
  void rise(SealedLayer sealed, std::unique_ptr<WritableLayer> top);
  /// Puts one layer in the place of `count` sealed ones, counted from the bottom, that show the same.
  void replace(std::size_t first, std::size_t count, SealedLayer layer);

  /// Fills `buffer` from a byte of the device on. Throws Error beyond its end.
  void read(std::uint64_t offset, char* buffer, std::size_t size) const;
  /// The bytes of a run.
  void read(const Run& run, char* buffer) const;
  /// Those of one of mappings().
  void read(const Mapping& mapping, char* buffer) const;
  /// All runs of a range in order, without gaps; neighbours of a kind are not joined.
  void visit(std::uint64_t offset, std::uint64_t size, const std::function<void(const Run&)>& visit) const;
  /// What the layers have together, in the order of the device; layers are counted as in Run.
  std::vector<Mapping> mappings() const;

 private:
  void merge_sealed();
  void visit_sealed(std::uint64_t begin, std::uint64_t end, const std::function<void(const Mapping&)>& visit) const;
  void read_layer(std::uint8_t layer, std::uint64_t place, char* buffer, std::size_t size) const;

  std::vector<SealedLayer> sealed_;
  std::unique_ptr<WritableLayer> top_;
  std::vector<Mapping> merged_;  ///< of the sealed ones
  std::uint64_t size_ = 0;
};

}  // namespace dsec::layers::overlaybd
