#pragma once

#include <map>
#include <string>
#include <vector>

namespace dsec {

/// Variables of an environment, by name.
using Variables = std::map<std::string, std::string>;

/// The value of a variable of the environment, empty when it is not set: of this process, or in a thread that does
/// something for a caller, of the caller.
std::string variable(const char* name);

/// The environment for a child, "NAME=value": of this process, with the caller's variables in the place of its own.
std::vector<std::string> environment_for_child();

/// In this thread, as long as it lives: what is done is done for a caller of another environment. `variables` has all
/// of `names` that the caller has set; all others are the process's own. Both must outlive it.
class ForCaller {
 public:
  ForCaller(const std::vector<std::string>& names, const Variables& variables);
  ~ForCaller();
  ForCaller(const ForCaller&) = delete;
};

}  // namespace dsec
