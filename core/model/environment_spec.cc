#include "core/model/environment_spec.h"

#include <algorithm>

namespace dsec {

std::vector<LayerRef> EnvironmentSpec::layers() const {
  std::vector<LayerRef> refs = {base};
  if (workspace) refs.push_back(*workspace);
  refs.insert(refs.end(), toolkits.begin(), toolkits.end());
  return refs;
}

bool valid_environment_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 128 && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || c == '_' || c == '.' || c == '-'; });
}

}  // namespace dsec
