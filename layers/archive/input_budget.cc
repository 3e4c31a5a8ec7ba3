#include "layers/archive/input_budget.h"

#include <unistd.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {

// The tree is kept in memory until it is written: what an entry takes there beside its name, target and attributes
// (measured), and how much all of them may.
constexpr std::uint64_t kEntryMemory = 1000;
std::uint64_t memory_allowed() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) /
         2;
}
// From here on the ratio of unpacked to packed bytes says something.
constexpr std::uint64_t kRatioFrom = 64 << 20;
// Deeper trees cannot be walked within an ordinary stack; PATH_MAX allows 2048.
constexpr std::size_t kDepth = 4096;
constexpr std::size_t kNameMax = 255;

}  // namespace

InputBudget::InputBudget(const InputLimits& limits) : limits_(limits), memory_(memory_allowed()) {}

void InputBudget::begin_archive(std::uint64_t packed) {
  before_ += unpacked_ + holes_;
  packed_ = packed;
  unpacked_ = holes_ = 0;
}

void InputBudget::unpacked(std::uint64_t bytes) {
  unpacked_ = bytes;
  check_size();
}

void InputBudget::entry(std::uint64_t metadata, std::uint64_t holes) {
  if (++entries_ > limits_.entries)
    throw refusal(Refusal::EntryLimit, "more than " + std::to_string(limits_.entries) + " entries")
        .hint("allow more with --max-entries");
  metadata_ += kEntryMemory + metadata;
  if (metadata_ > memory_)
    throw refusal(Refusal::EntryLimit, "its " + std::to_string(entries_) +
                                           " entries would take more than half of this host's memory, " +
                                           format_size(memory_));
  if (holes > limits_.unpacked_bytes)
    holes_ = limits_.unpacked_bytes + 1;
  else
    holes_ += holes;
  check_size();
}

void InputBudget::check_size() const {
  const std::uint64_t here = unpacked_ + holes_;
  if (before_ + here > limits_.unpacked_bytes)
    throw refusal(Refusal::SizeLimit, "unpacks to more than " + format_size(limits_.unpacked_bytes))
        .hint("allow more with --max-unpacked");
  // Divided, not multiplied: the packed size comes from outside and the product could overflow.
  if (here > kRatioFrom && here / std::max<std::uint64_t>(limits_.ratio, 1) > packed_)
    throw refusal(Refusal::SizeLimit, "unpacks to more than " + std::to_string(limits_.ratio) + " times its size of " +
                                          format_size(packed_))
        .hint("allow more with --max-ratio");
}

std::string normal_path(std::string_view raw, const InputLimits& limits, std::string_view marker) {
  if (raw.find('\0') != std::string_view::npos)
    throw refusal(Refusal::NotRepresentable, "entry " + quote(raw) + " has a NUL in its name");
  std::string path;
  std::size_t depth = 0;
  for (std::string_view rest = raw; !rest.empty();) {
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, slash);
    rest.remove_prefix(std::min(slash + 1, rest.size()));
    if (part.empty() || part == ".") continue;
    if (part == "..") throw refusal(Refusal::PathEscapesRoot, "entry " + quote(raw) + " has '..' in its path");
    if (part.size() > kNameMax + (part.starts_with(marker) ? marker.size() : 0))
      throw refusal(Refusal::NotRepresentable,
                    "entry " + quote(raw) + " has a name longer than the 255 bytes that Linux allows");
    if (++depth > kDepth)
      throw refusal(Refusal::NotRepresentable, "entry " + quote(raw.substr(0, 80)) + "… lies deeper than " +
                                                   std::to_string(kDepth) + " directories");
    if (!path.empty()) path += '/';
    path += part;
  }
  if (path.size() > limits.path_bytes)
    throw refusal(Refusal::PathLimit, "entry " + quote(raw.substr(0, 80)) + "… has a path of " +
                                          std::to_string(path.size()) + " bytes, more than the " +
                                          std::to_string(limits.path_bytes) + " allowed")
        .hint("allow more with --max-path");
  return path;
}

}  // namespace dsec::layers
