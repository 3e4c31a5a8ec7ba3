// A Dockerfile and what stands beside it: its instructions, a plan of them, patterns of .dockerignore, substitution of
// variables. The first byte chooses; only Error is forgiven.
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/error.h"
#include "layers/dockerfile/ignore.h"
#include "layers/dockerfile/plan.h"
#include "layers/dockerfile/words.h"

namespace {

using namespace dsec;
using namespace dsec::layers::dockerfile;

void parse(unsigned char which, const std::string& text) {
  switch (which % 4) {
    case 0:
      for (const Instruction& instruction : Dockerfile::parse(text, "Dockerfile").instructions)
        (void)instruction.brief();
      break;
    case 1:
      (void)make_plan(Dockerfile::parse(text, "Dockerfile"), {}, "linux/amd64",
                      // Its name is what it holds back for whoever is FROM it.
                      [](const NamedImage& image) {
                        ImageConfig config{.env = {"PATH=/bin"}};
                        config.onbuild = {image.name};
                        return config;
                      });
      break;
    case 2: {
      const std::size_t end = text.find('\0');
      const IgnoreList list = IgnoreList::parse(text.substr(0, end), ".dockerignore");
      if (end != std::string::npos) (void)list.excludes(text.substr(end + 1));
      break;
    }
    default: {
      const Lookup lookup = [](const std::string& name) {
        return name == "x" ? std::optional<std::string>("a/b.c") : std::nullopt;
      };
      if (expand(text, {lookup, '\\'}).size() > kLongestText) __builtin_trap();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  if (size == 0) return 0;
  try {
    parse(bytes[0], std::string(reinterpret_cast<const char*>(bytes + 1), size - 1));
  } catch (const Error&) {
  }
  return 0;
}
