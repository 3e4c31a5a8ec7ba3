#pragma once

#include <functional>
#include <string>

#include "core/engine/recording.h"

namespace dsec::engine {

/// Of an operation's files more than this are not kept.
inline constexpr std::uint64_t kKeptContent = 64ull << 20;

/// Copies with `copy`, which reads or writes a tar stream, and records what passes. See Engine::copy_in and copy_out
/// for an op_id that is recorded already.
void record_copy_in(const RecordingPlace& place, const std::string& path, int from, const OperationContext& context,
                    const std::function<void(int from)>& copy);
void record_copy_out(const RecordingPlace& place, const std::string& path, int to, const OperationContext& context,
                     const std::function<void(int to)>& copy);

}  // namespace dsec::engine
