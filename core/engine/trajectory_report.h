#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/secrets.h"
#include "core/engine/trajectory.h"
#include "core/engine/written_files.h"

namespace dsec::engine {

/// How things are told to people elsewhere, too.
struct ReportWords {
  std::function<std::string(const Operation&)> request;  ///< "exec pytest -q"
  /// "exit code 1"
  std::function<std::string(const Trajectory&, const Operation&)> outcome;
  /// What makes one text the other, by lines: "@@ … @@" and what follows.
  std::function<std::string(const std::string& before, const std::string& after)> diff;
};

/// What a replay of an operation did to files.
struct ReplayedFiles {
  std::vector<WrittenFile> written;
  bool same = true;  ///< the operation came out as recorded
};

/// What a report shows.
struct ReportContent {
  const Trajectory& trajectory;
  const Trajectory* against = nullptr;                ///< what it is compared with; null: nothing
  std::map<std::uint64_t, ReplayedFiles> files = {};  ///< by the operation's number; those that were replayed
};

/// Writes one page of HTML that shows a rollout: when what was done, what commands said, which files were copied or
/// written, what the network was asked for, and how another differs. It needs nothing else, asks nobody for anything
/// and runs no script but its own, whatever the trajectory holds: all of it is escaped, and a policy in the page
/// forbids the rest. Secrets are masked. `write` gets it piece by piece. Throws Error.
void write_report(const ReportContent& content, const SecretMask& mask, const ReportWords& words,
                  const std::function<void(std::string_view)>& write);

/// Text as HTML shows it: marks that mean something escaped, colours of a terminal left out, other control characters,
/// those that turn the direction of text, and bytes that are no UTF-8 as \xNN.
std::string html_text(std::string_view text);

}  // namespace dsec::engine
