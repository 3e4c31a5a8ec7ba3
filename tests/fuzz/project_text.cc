// The text of a project: dsec.yaml with its variables, dsec.lock, and what stands in both. The first byte chooses; only
// Error is forgiven.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/model/hostname.h"
#include "core/model/layer_ref.h"
#include "core/model/lock.h"
#include "core/model/sandbox_spec.h"
#include "layers/build/project.h"

namespace {

using namespace dsec;

void parse(unsigned char which, const std::string& text) {
  switch (which % 5) {
    case 0: {
      const layers::Project project = layers::Project::parse(text, "dsec.yaml", {{"ARG", "value"}});
      for (const layers::LayerRecipe& recipe : project.layers) {
        (void)recipe.digest();
        for (const layers::Step& step : recipe.steps) (void)brief(step);
      }
      break;
    }
    case 1:
      // What a lock says of itself it must be able to read again.
      if (const Lock lock = Lock::parse(text, "dsec.lock"); Lock::parse(lock.str(), "dsec.lock") != lock)
        __builtin_trap();
      break;
    case 2:
      (void)sandbox_spec_from_json(parse_json(text, "lease.json"));
      break;
    case 3:
      (void)LayerRef::parse(text);
      break;
    default:
      for (const auto take :
           {+[](const std::string& t) { (void)parse_size(t); }, +[](const std::string& t) { (void)parse_duration(t); },
            +[](const std::string& t) { check_hostname(t); }}) {
        try {
          take(text);
        } catch (const Error&) {
        }
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
