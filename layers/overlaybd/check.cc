#include "layers/overlaybd/check.h"

#include <algorithm>

#include "layers/overlaybd/stack.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr std::uint64_t kPiece = 1 << 20;  // bytes read at a time

class Check {
 public:
  Check(std::vector<LayerFiles> layers, Progress& progress) : layers_(std::move(layers)), progress_(progress) {}

  CheckResult run() {
    for (const LayerFiles& layer : layers_) {
      file_ = layer.data.native();
      step_ = "check " + quote(file_);
      progress_.begin(step_);
      try {
        if (layer.writable)
          writable(WritableLayer(layer.data, layer.index, WritableLayer::Access::Read));
        else
          sealed(SealedLayer(open_layer_file(layer.data)));
      } catch (const Error& error) {
        problem(error.message());
        below_.clear();
      }
      progress_.end(step_, "");
      ++result_.layers;
    }
    const std::size_t sealed = layers_.size() - (!layers_.empty() && layers_.back().writable ? 1 : 0);
    if (sealed > Stack::kMostSealed)
      problem("these are " + std::to_string(sealed) + " sealed layers, and a device has at most " +
              std::to_string(Stack::kMostSealed));
    return std::move(result_);
  }

 private:
  void problem(std::string what) { result_.problems.push_back({file_, std::move(what)}); }

  void sealed(const SealedLayer& layer) {
    const RandomBytes& bytes = *layer.file().bytes;
    if (!layer.file().zfile || !layer.file().zfile->has_checksums) ++result_.unverified;
    facts(layer.facts(), layer.mappings());
    std::string buffer(kPiece, '\0');
    for (std::uint64_t at = 0; at < bytes.size();) {
      const auto size = static_cast<std::size_t>(std::min(kPiece, bytes.size() - at));
      bytes.read(at, buffer.data(), size);
      count(size, at += size, bytes.size());
    }
  }

  void writable(const WritableLayer& layer) {
    ++result_.unverified;
    const std::vector<Mapping> mappings = layer.extents().mappings();
    facts(layer.facts(), mappings);
    std::string buffer;
    std::uint64_t done = 0;
    for (const Mapping& mapping : mappings) {
      if (mapping.zero()) continue;
      buffer.resize(mapping.length() * kSector);
      layer.read(mapping.place() * kSector, buffer.data(), buffer.size());
      count(buffer.size(), done += buffer.size(), layer.stored());
    }
  }

  void facts(const LayerHeader& facts, const std::vector<Mapping>& mappings) {
    if (!below_.empty() && !facts.parent.empty() && below_ != facts.parent)
      problem("it belongs on layer " + facts.parent + ", and the one below it is " + below_);
    below_ = facts.uuid;
    if (facts.size > 0 && !mappings.empty() && mappings.back().end() > facts.size / kSector)
      problem("it has sectors up to " + std::to_string(mappings.back().end()) + ", and its device has " +
              std::to_string(facts.size / kSector));
  }

  void count(std::size_t read, std::uint64_t done, std::uint64_t total) {
    result_.bytes += read;
    progress_.advance(step_, done, total);
  }

  std::vector<LayerFiles> layers_;
  Progress& progress_;
  CheckResult result_;
  std::string file_, step_;
  std::string below_;  ///< UUID of the layer before; empty: not known
};

}  // namespace

CheckResult check(std::span<const std::filesystem::path> files, Progress& progress) {
  return Check(group_layer_files(files), progress).run();
}

}  // namespace dsec::layers::overlaybd
