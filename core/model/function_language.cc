#include "core/model/function_language.h"

#include <algorithm>

namespace dsec {

// Programs are looked up in the PATH of the environment. A warm-up does what every call would do first: it brings the
// interpreter and what it always loads into the page cache. Compilers run once for all calls, and need none.
std::span<const FunctionLanguage> function_languages() {
  static const std::vector<FunctionLanguage> kLanguages = {
      {"bash", "main.sh", {"bash", "main.sh"}, {}, {"bash", "-c", ":"}},
      {"c", "main.c", {"./main"}, {"cc", "-O2", "-o", "main", "main.c", "-lm"}, {}},
      {"c++", "main.cpp", {"./main"}, {"c++", "-O2", "-o", "main", "main.cpp"}, {}},
      {"go", "main.go", {"./main"}, {"go", "build", "-o", "main", "main.go"}, {}},
      {"java", "Main.java", {"java", "-cp", ".", "Main"}, {"javac", "Main.java"}, {"java", "-version"}},
      {"node", "main.js", {"node", "main.js"}, {}, {"node", "-e", "0"}},
      {"perl", "main.pl", {"perl", "main.pl"}, {}, {"perl", "-e", "1"}},
      {"python", "main.py", {"python3", "main.py"}, {}, {"python3", "-c", "pass"}},
      {"ruby", "main.rb", {"ruby", "main.rb"}, {}, {"ruby", "-e", "1"}},
      {"rust", "main.rs", {"./main"}, {"rustc", "-O", "-o", "main", "main.rs"}, {}},
      {"sh", "main.sh", {"sh", "main.sh"}, {}, {"sh", "-c", ":"}},
  };
  return kLanguages;
}

const FunctionLanguage* function_language(std::string_view name) {
  const auto all = function_languages();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace dsec
