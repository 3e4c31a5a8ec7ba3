#pragma once

#include <string>

namespace YAML {
class Node;
}

namespace dsec {

/// The one document of a text; null for an empty text. Throws YAML::Exception, which has the place, also for what is
/// well-formed and would keep who walks through it busy for ever: aliases that lead back to where they stand, or that
/// unfold to far more than the text says.
YAML::Node load_yaml(const std::string& text);

}  // namespace dsec
