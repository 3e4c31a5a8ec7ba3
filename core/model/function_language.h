#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsec {

/// What `language` of a function type stands for: what is not given beside it. man/dsec-fn.1.md has the table.
struct FunctionLanguage {
  std::string name;                                    ///< "python"
  std::string file;                                    ///< where a call brings its program, in the workdir
  std::vector<std::string> command, compile, warm_up;  ///< argv; the latter two may be empty
};

/// In order of their names.
std::span<const FunctionLanguage> function_languages();
/// Null when there is none of this name.
const FunctionLanguage* function_language(std::string_view name);

}  // namespace dsec
