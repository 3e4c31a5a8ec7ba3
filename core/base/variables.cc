#include "core/base/variables.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace dsec {
namespace {

struct Caller {
  const std::vector<std::string>* names = nullptr;
  const Variables* variables = nullptr;
};
thread_local Caller caller;

bool is_callers(std::string_view name) {
  return caller.names && std::find(caller.names->begin(), caller.names->end(), name) != caller.names->end();
}

}  // namespace

std::string variable(const char* name) {
  if (is_callers(name)) {
    const auto found = caller.variables->find(name);
    return found == caller.variables->end() ? "" : found->second;
  }
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::vector<std::string> environment_for_child() {
  std::vector<std::string> all;
  for (char** each = environ; *each; ++each) {
    const std::string_view text = *each;
    if (!is_callers(text.substr(0, text.find('=')))) all.emplace_back(text);
  }
  if (caller.variables)
    for (const auto& [name, value] : *caller.variables) all.push_back(name + "=" + value);
  return all;
}

ForCaller::ForCaller(const std::vector<std::string>& names, const Variables& variables) {
  caller = {&names, &variables};
}
ForCaller::~ForCaller() { caller = {}; }

}  // namespace dsec
