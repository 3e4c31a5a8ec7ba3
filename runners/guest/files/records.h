#pragma once

#include <string>
#include <string_view>

#include "core/engine/branching.h"
#include "core/engine/file_watch.h"
#include "runners/protocol/guest_channel.h"
#include "runners/protocol/wire.h"

/// What Service::Diff and Service::Watch say, one record after the other; see runners/protocol/guest_channel.h.
namespace dsec::guest_files {

using Writer = runners::wire::Writer<std::string>;

inline void append_record(std::string& out, const engine::Change& change) {
  constexpr char kLetters[] = {'A', 'C', 'D'};
  Writer(out)
      .u32(static_cast<unsigned char>(kLetters[static_cast<int>(change.kind)]))
      .str(change.path.data(), change.path.size());
}

inline void append_record(std::string& out, const engine::FileEvent& event) {
  Writer(out)
      .u32(static_cast<std::uint32_t>(event.kind))
      .u32(event.directory)
      .str(event.path.data(), event.path.size())
      .str(event.from.data(), event.from.size());
}

/// The first record of a watch.
inline void append_ready(std::string& out) {
  Writer(out).u32(runners::channel::kWatchReady).u32(0).str("", 0).str("", 0);
}

}  // namespace dsec::guest_files
