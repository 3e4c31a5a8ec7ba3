#include "layers/overlaybd/mapping.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/little_endian.h"

namespace dsec::layers::overlaybd {
namespace {

// lsmt/index.h, MAX_LSMT_INDEX_SIZE.
constexpr std::size_t kMostMerged = 128'000'000;

}  // namespace

Mapping Mapping::parse(const char* bytes) {
  const Fields fields(std::string_view(bytes, kSize));
  Mapping mapping;
  mapping.low_ = fields.u64(0);
  mapping.high_ = fields.u64(8);
  return mapping;
}

void Mapping::append_to(std::string& bytes) const {
  const std::size_t at = bytes.size();
  bytes.resize(at + kSize);
  put_u64(bytes, at, low_);
  put_u64(bytes, at + 8, high_);
}

Mapping Mapping::part(std::uint64_t from, std::uint64_t to) const {
  const std::uint64_t begin = std::max(from, offset()), behind = std::min(to, end());
  return {begin, static_cast<std::uint32_t>(behind - begin), zero() ? place() : place() + (begin - offset()), zero(),
          layer()};
}

bool Mapping::join(const Mapping& next) {
  if (end() != next.offset() || place_end() != next.place() || zero() != next.zero() || layer() != next.layer() ||
      length() + next.length() >= kMaxLength)
    return false;
  *this = {offset(), length() + next.length(), place(), zero(), layer()};
  return true;
}

bool lies_within(const Mapping& mapping, std::uint64_t first, std::uint64_t last) {
  if (mapping.zero()) return mapping.place() >= first && mapping.place() <= last;
  return mapping.place() >= first && mapping.place_end() <= last && mapping.length() > 0;
}

std::string fault_of(const std::vector<Mapping>& mappings, std::uint64_t first, std::uint64_t last) {
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    const Mapping& mapping = mappings[i];
    const std::string which = "mapping " + std::to_string(i) + " ";
    if (mapping.length() == 0) return which + "is of no sectors";
    if (mapping.end() > Mapping::kMaxOffset) return which + "goes beyond what a device can have";
    if (mapping.offset() < before)
      return which + "begins at sector " + std::to_string(mapping.offset()) + ", before the end of the one before it";
    if (!lies_within(mapping, first, last))
      return which + "is of sectors " + std::to_string(mapping.place()) + " to " + std::to_string(mapping.place_end()) +
             " of the file, and its data are sectors " + std::to_string(first) + " to " + std::to_string(last);
    before = mapping.end();
  }
  return "";
}

std::vector<Mapping> lay_over(const std::vector<Mapping>& upper, const std::vector<Mapping>& lower) {
  std::vector<Mapping> both;
  both.reserve(upper.size() + lower.size());
  auto below = lower.begin();
  std::uint64_t done = 0;  // sectors before it are decided
  const auto take_below = [&](std::uint64_t until) {
    while (below != lower.end() && below->offset() < until) {
      if (below->end() > done) both.push_back(below->part(done, until));
      if (below->end() > until) break;  // the rest of it may show behind what hides it
      ++below;
    }
  };
  for (const Mapping& above : upper) {
    if (above.offset() > done) take_below(above.offset());
    both.push_back(above);
    done = above.end();
  }
  take_below(Mapping::kMaxOffset);
  return both;
}

std::vector<Mapping> merge(std::vector<std::vector<Mapping>> layers) {
  // Neighbours first, so that each mapping is copied only as often as the layers can be halved.
  while (layers.size() > 1) {
    std::vector<std::vector<Mapping>> next;
    for (std::size_t i = 0; i + 1 < layers.size(); i += 2) {
      next.push_back(lay_over(layers[i + 1], layers[i]));
      layers[i] = layers[i + 1] = {};
      if (next.back().size() > kMostMerged)
        throw failure("together the layers have more than " + std::to_string(kMostMerged) + " mappings")
            .hint("make fewer layers of them with dsec obd commit");
    }
    if (layers.size() % 2 == 1) next.push_back(std::move(layers.back()));
    layers = std::move(next);
  }
  return layers.empty() ? std::vector<Mapping>() : std::move(layers.front());
}

}  // namespace dsec::layers::overlaybd
