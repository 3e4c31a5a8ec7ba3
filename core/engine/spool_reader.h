#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec::engine {

/// One piece of a command's output; stream 0 is stdout.
using SpoolSink =
    std::function<void(unsigned stream, std::chrono::system_clock::time_point time, std::string_view data)>;

struct SpoolPart {
  UniqueFd file;
  std::uint64_t size;  ///< bytes that are valid
};

/// Sends the records of a head and of tails, in order of time; where `dropped` bytes of a stream are missing in
/// between, a line that says so stands in their place. A damaged record ends its file. Reads little at a time.
void read_spool(std::span<const SpoolPart> parts, const std::uint64_t (&dropped)[2], const SpoolSink& sink);

/// The spool files of a command, the older half of each tail first.
std::vector<SpoolPart> open_spool(const std::filesystem::path& directory, const std::string& exec_id);

}  // namespace dsec::engine
