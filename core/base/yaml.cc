#include "core/base/yaml.h"

#include <yaml-cpp/yaml.h>

#include <vector>

namespace dsec {
namespace {

constexpr int kDepth = 100;
// Without aliases a text has fewer values than bytes: this is what aliases may add.
constexpr std::size_t kAddedByAliases = 100'000;

class Unfolding {
 public:
  explicit Unfolding(std::size_t most) : most_(most) {}

  void count(const YAML::Node& node, int depth) {
    if (depth > kDepth)
      throw YAML::ParserException(node.Mark(), "values lie in one another more than " + std::to_string(kDepth) +
                                                   " deep, or an alias leads back to where it stands");
    if (++values_ > most_) throw YAML::ParserException(node.Mark(), "aliases unfold to too many values");
    if (node.IsSequence())
      for (const YAML::Node& item : node) count(item, depth + 1);
    if (!node.IsMap()) return;
    for (const auto& pair : node) {
      count(pair.first, depth + 1);
      count(pair.second, depth + 1);
    }
  }

 private:
  std::size_t most_, values_ = 0;
};

}  // namespace

YAML::Node load_yaml(const std::string& text) {
  const std::vector<YAML::Node> documents = YAML::LoadAll(text);
  for (std::size_t i = 1; i < documents.size(); ++i)
    if (!documents[i].IsNull())
      throw YAML::ParserException(documents[i].Mark(), "a second document begins here, where one is expected");
  if (documents.empty()) return {};
  Unfolding(text.size() + kAddedByAliases).count(documents.front(), 0);
  return documents.front();
}

}  // namespace dsec
