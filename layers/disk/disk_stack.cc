#include "layers/disk/disk_stack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/overlaybd/layer_writer.h"

namespace dsec::layers {
namespace fs = std::filesystem;
using overlaybd::kSector;
using overlaybd::Mapping;
using overlaybd::SealedLayer;
using overlaybd::Stack;
using overlaybd::WritableLayer;
namespace {

// Sectors that are looked at together for being zero: as many as a layer's writer puts under one mapping.
constexpr std::uint64_t kPiece = 64;

void sync_file(const fs::path& path) {
  const UniqueFd file = open_file(path, O_RDONLY | O_NOFOLLOW);
  if (::fdatasync(file.get()) != 0) throw system_error("flush " + quote(path.native()));
}

void unlink_if_there(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw system_error("remove " + quote(path.native()));
}

struct stat status_of(const fs::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) throw system_error("look at " + quote(path.native()));
  return status;
}

bool is_zero(std::string_view bytes) { return bytes.find_first_not_of('\0') == std::string_view::npos; }

// All that the layers of a stack have, as one.
void write_joined(const Stack& stack, int fd) {
  const auto output = overlaybd::make_layer_output(fd, {});
  overlaybd::LayerHeader facts;
  facts.size = stack.size();
  facts.uuid = stack.highest().uuid;
  facts.parent = stack.lowest().parent;
  overlaybd::LayerWriter writer(*output, facts);
  std::string buffer;
  for (const Mapping& mapping : stack.mappings()) {
    if (mapping.zero()) {
      writer.zeros(mapping.offset(), mapping.length(), 0);
      continue;
    }
    for (std::uint64_t sector = mapping.offset(); sector < mapping.end();) {
      const Mapping part = mapping.part(sector, sector + kPiece);
      buffer.resize(part.length() * kSector);
      stack.read(part, buffer.data());
      // What was cleared while it was the top's own stands there as data.
      if (is_zero(buffer))
        writer.zeros(sector, part.length(), 0);
      else
        writer.data(sector, buffer, 0);
      sector = part.end();
    }
  }
  writer.finish();
}

}  // namespace

DiskStack::DiskStack(fs::path disk, std::vector<UniqueFd> below)
    : disk_(std::move(disk)), facts_(DiskFacts::read(disk_)), below_(below.size()) {
  if (facts_.top == 0) throw failure(quote(disk_.native()) + " is a snapshot, which is not written to");
  if (below.size() != facts_.below.size())
    throw failure("the disk stands on " + std::to_string(facts_.below.size()) + " layers that lie elsewhere, and " +
                  std::to_string(below.size()) + " are given");
  // First: whoever else uses the disk has its top.
  std::unique_ptr<WritableLayer> top = open_top();
  DiskFacts since = DiskFacts::read(disk_);
  if (since.top != facts_.top) throw failure("another process uses the disk");
  // It may have made one of several layers, and gone.
  facts_ = std::move(since);
  for (const std::uint64_t number : facts_.layers) next_number_ = std::max(next_number_, number + 1);
  next_number_ = std::max(next_number_, facts_.top + 1);
  remove_unnamed(disk_, facts_);
  std::vector<SealedLayer> sealed;
  for (std::size_t i = 0; i < below.size(); ++i) {
    SealedLayer layer(overlaybd::open_layer_file(std::move(below[i]), "the layer below " + std::to_string(i)));
    if (layer.facts().uuid != facts_.below[i])
      throw failure("the disk was made on layer " + facts_.below[i] + ", and " + layer.facts().uuid + " is given");
    sealed.push_back(std::move(layer));
  }
  for (const std::uint64_t number : facts_.layers) sealed.push_back(open_sealed(number));
  stack_.emplace(std::move(sealed), std::move(top));
}

std::unique_ptr<WritableLayer> DiskStack::open_top() const {
  return std::make_unique<WritableLayer>(layer_file(disk_, facts_.top), index_file(disk_, facts_.top),
                                         WritableLayer::Access::Write);
}

SealedLayer DiskStack::open_sealed(std::uint64_t number) {
  const fs::path file = layer_file(disk_, number), index = index_file(disk_, number);
  // Its index is there until it was flushed. If the host crashed before, its end may not have come to the disk.
  if (fs::exists(index)) {
    try {
      SealedLayer layer(overlaybd::open_layer_file(file));
      unflushed_.push_back(number);
      return layer;
    } catch (const Error&) {
      WritableLayer(file, index, WritableLayer::Access::Write).seal();
    }
    unflushed_.push_back(number);
  }
  return SealedLayer(overlaybd::open_layer_file(file));
}

void DiskStack::write(std::uint64_t offset, std::string_view bytes) {
  stack_->top()->write_over(offset, bytes);
  seal_when_in_pieces();
}

// What the top has stays its own, so that its files do not grow with each time that the same is written and cleared.
void DiskStack::clear(std::uint64_t offset, std::uint64_t size) {
  std::vector<Stack::Run> runs;
  stack_->visit(offset, size, [&](const Stack::Run& run) {
    if (run.kind != Stack::Run::Kind::Data) return;
    const bool joins = !runs.empty() && runs.back().offset + runs.back().size == run.offset &&
                       runs.back().layer != stack_->sealed().size() && run.layer != stack_->sealed().size();
    if (joins)
      runs.back().size += run.size;
    else
      runs.push_back(run);
  });
  for (const Stack::Run& run : runs)
    if (run.layer == stack_->sealed().size())
      stack_->top()->clear(run.place, run.size);
    else
      stack_->top()->discard(run.offset, run.size);
  seal_when_in_pieces();
}

void DiskStack::flush() {
  for (const std::uint64_t number : unflushed_) sync_file(layer_file(disk_, number));
  stack_->top()->flush();
  while (!unflushed_.empty()) {
    unlink_if_there(index_file(disk_, unflushed_.back()));
    unflushed_.pop_back();
  }
}

void DiskStack::seal_when_in_pieces() {
  if (stack_->top()->extents().size() < most_runs_) return;
  most_runs_ += kMostRuns;
  try {
    // What was written over stays in sealed layers until they are compacted, which may fail for the same pieces. A top
    // that is not sealed is written over where it is.
    if (own_bytes() < 2 * size()) seal();
  } catch (const Error&) {
    // The machine's write is done all the same. Whoever wants a seal is told why there is none.
  }
}

// What no other disk or snapshot has.
std::uint64_t DiskStack::own_bytes() const {
  std::uint64_t blocks = static_cast<std::uint64_t>(status_of(layer_file(disk_, facts_.top)).st_blocks);
  for (const std::uint64_t number : facts_.layers) {
    const struct stat status = status_of(layer_file(disk_, number));
    if (status.st_nlink == 1) blocks += static_cast<std::uint64_t>(status.st_blocks);
  }
  return blocks * 512;
}

void DiskStack::seal() {
  if (stack_->sealed().size() >= Stack::kMostSealed)
    throw failure("the disk has " + std::to_string(Stack::kMostSealed) + " layers, and no more can be put on them")
        .hint("remove snapshots of it, so that its layers can be made fewer");
  DiskFacts next = facts_;
  next.layers.push_back(facts_.top);
  next.top = next_number_++;
  make_top(disk_, next.top, stack_->size(), stack_->top()->facts().uuid);
  sync_top(disk_, next.top);
  stack_->top()->seal();
  SealedLayer sealed(overlaybd::open_layer_file(layer_file(disk_, facts_.top)));
  auto top = std::make_unique<WritableLayer>(layer_file(disk_, next.top), index_file(disk_, next.top),
                                             WritableLayer::Access::Write);
  next.write(disk_);
  unflushed_.push_back(facts_.top);
  facts_ = std::move(next);
  most_runs_ = kMostRuns;
  stack_->rise(std::move(sealed), std::move(top));
}

// The newest of them as far down as they are of about one size: so each byte is written again only as often as the
// layers can be doubled. What others have, too, would take room twice.
std::optional<Compaction> DiskStack::next_compaction() {
  if (facts_.layers.size() < kManyLayers) return std::nullopt;
  const bool in_need = stack_->sealed().size() >= kTooManyLayers;
  std::vector<std::uint64_t> blocks;  // of 512 bytes; 0: to be left alone
  for (const std::uint64_t number : facts_.layers) {
    const struct stat status = status_of(layer_file(disk_, number));
    blocks.push_back(status.st_nlink > 1 && !in_need ? 0 : static_cast<std::uint64_t>(status.st_blocks));
  }
  std::size_t end = blocks.size();
  while (end > 0 && blocks[end - 1] == 0) --end;
  std::size_t begin = end;
  for (std::uint64_t sum = 0; begin > 0 && blocks[begin - 1] > 0; --begin) {
    if (end - begin >= kManyLayers / 2 && blocks[begin - 1] > 2 * sum) break;
    sum += blocks[begin - 1];
  }
  if (end - begin < kManyLayers / 2) return std::nullopt;
  const auto layers = facts_.layers.begin();
  return Compaction{.disk = disk_,
                    .first = begin,
                    .layers = {layers + static_cast<std::ptrdiff_t>(begin), layers + static_cast<std::ptrdiff_t>(end)},
                    .into = next_number_++};
}

void Compaction::run() const {
  std::vector<SealedLayer> sealed;
  for (const std::uint64_t number : layers) sealed.emplace_back(overlaybd::open_layer_file(layer_file(disk, number)));
  const Stack stack(std::move(sealed), nullptr);
  const UniqueFd file = open_file(layer_file(disk, into), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  try {
    write_joined(stack, file.get());
    if (::fsync(file.get()) != 0) throw system_error("write " + quote(layer_file(disk, into).native()));
  } catch (...) {
    ::unlink(layer_file(disk, into).c_str());
    throw;
  }
}

void DiskStack::accept(const Compaction& compaction) {
  SealedLayer layer(overlaybd::open_layer_file(layer_file(disk_, compaction.into)));
  DiskFacts next = facts_;
  const auto begin = next.layers.begin() + static_cast<std::ptrdiff_t>(compaction.first);
  const auto end = begin + static_cast<std::ptrdiff_t>(compaction.layers.size());
  *begin = compaction.into;
  next.layers.erase(begin + 1, end);
  next.write(disk_);
  facts_ = std::move(next);
  stack_->replace(below_ + compaction.first, compaction.layers.size(), std::move(layer));
  for (const std::uint64_t number : compaction.layers) {
    std::erase(unflushed_, number);
    replaced_.push_back(number);
  }
}

void DiskStack::forget_replaced() {
  for (const std::uint64_t number : replaced_) {
    unlink_if_there(index_file(disk_, number));
    unlink_if_there(layer_file(disk_, number));
  }
  replaced_.clear();
}

}  // namespace dsec::layers
