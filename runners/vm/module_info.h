#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsec::runners {

/// What a kernel module tells of itself in its .modinfo section.
struct ModuleInfo {
  std::vector<std::string> depends;  ///< modules that must be loaded before it
  std::vector<std::string> before;   ///< "softdep pre": names or aliases that should be, where they exist
  std::vector<std::string> aliases;
};

/// Throws Error when `bytes` are no ELF file with such a section.
ModuleInfo read_module_info(std::string_view bytes);

/// The words of "a b,c" and the like.
std::vector<std::string> split_words(std::string_view text, std::string_view separators);

/// Adds to `before` what a softdep names after "pre:".
void add_softdep(std::string_view text, std::vector<std::string>& before);

}  // namespace dsec::runners
