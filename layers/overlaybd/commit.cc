#include "layers/overlaybd/commit.h"

#include <algorithm>

#include "layers/overlaybd/layer_writer.h"

namespace dsec::layers::overlaybd {
namespace {

// Sectors read at a time: a multiple of what the writer puts under one mapping, so that the result does not depend on
// it.
constexpr std::uint64_t kPiece = 2048;

std::uint64_t data_sectors(const std::vector<Mapping>& mappings) {
  std::uint64_t sectors = 0;
  for (const Mapping& mapping : mappings) sectors += mapping.zero() ? 0 : mapping.length();
  return sectors;
}

}  // namespace

Written commit(const Stack& stack, int fd, const NewLayer& layer, Progress& progress) {
  const std::string step = "commit";
  LayerHeader facts;
  facts.size = stack.size();
  facts.uuid = layer.uuid.value_or(stack.highest().uuid);
  facts.parent = layer.parent.value_or(stack.lowest().parent);
  facts.message = layer.message;
  const auto output = make_layer_output(fd, layer.packing);
  LayerWriter writer(*output, facts);
  const std::vector<Mapping> mappings = stack.mappings();
  const std::uint64_t total = data_sectors(mappings) * kSector;
  std::uint64_t done = 0;
  progress.begin(step);
  std::string buffer;
  for (const Mapping& mapping : mappings) {
    if (mapping.zero()) {
      writer.zeros(mapping.offset(), mapping.length(), mapping.layer());
      continue;
    }
    for (std::uint64_t sector = mapping.offset(); sector < mapping.end();) {
      const Mapping part = mapping.part(sector, sector + kPiece);
      buffer.resize(part.length() * kSector);
      stack.read(part, buffer.data());
      writer.data(sector, buffer, mapping.layer());
      sector = part.end();
      done += buffer.size();
      progress.advance(step, done, total);
    }
  }
  Written written{.bytes = writer.finish(), .size = facts.size, .mappings = writer.mappings()};
  written.uuid = facts.uuid;
  written.parent = facts.parent;
  progress.end(step, "");
  return written;
}

}  // namespace dsec::layers::overlaybd
