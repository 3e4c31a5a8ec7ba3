#pragma once

#include <functional>
#include <string>
#include <vector>

namespace dsec::engine {
class Engine;
}

namespace dsec::cli {

class Command;
class Invocation;

/// Which sandboxes a verb works on: named ones, or all with some labels.
struct Selection {
  std::vector<std::string> names, labels;
};

void declare(Command& command, Selection& selection);

/// Calls `action` for each; a failure does not spare the others, and the first is thrown at the end. What was done is
/// told: one name a line, as it was given.
void for_each_selected(Invocation& call, const Selection& selection,
                       const std::function<void(engine::Engine&, const std::string& name)>& action);

}  // namespace dsec::cli
