#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/engine/secrets.h"
#include "core/engine/trajectory.h"

namespace dsec::engine {

/// How things are told to people elsewhere, too.
struct ReportWords {
  std::function<std::string(const Operation&)> request;  ///< "exec pytest -q"
  std::function<std::string(const Operation&)> outcome;  ///< "exit code 1"
  /// What makes one text the other, by lines: "@@ … @@" and what follows.
  std::function<std::string(const std::string& before, const std::string& after)> diff;
};

/// Writes one page of HTML that shows a rollout: when what was done, what commands said, which files were copied, what
/// the network was asked for, and how `against` (null: none) differs. It needs nothing else, asks nobody for anything
/// and runs no script but its own, whatever the trajectory holds: all of it is escaped, and a policy in the page
/// forbids the rest. Secrets are masked. `write` gets it piece by piece. Throws Error.
void write_report(const Trajectory& trajectory, const Trajectory* against, const SecretMask& mask,
                  const ReportWords& words, const std::function<void(std::string_view)>& write);

/// Text as HTML shows it: marks that mean something escaped, colours of a terminal left out, other control characters,
/// those that turn the direction of text, and bytes that are no UTF-8 as \xNN.
std::string html_text(std::string_view text);

}  // namespace dsec::engine
