#include "cli/publish_text.h"

#include <nlohmann/json.hpp>

#include "core/base/units.h"

namespace dsec::cli {

void tell(Output& out, const registry::PublishResult& result) {
  if (out.json()) {
    Json layers = Json::array();
    for (const auto& layer : result.layers)
      layers.push_back({{"ref", layer.ref},
                        {"digest", layer.digest.str()},
                        {"bytes", layer.bytes},
                        {"bytes_copied", layer.bytes_copied}});
    return out.json({{"layers", layers},
                     {"bytes_copied", result.bytes_copied},
                     {"bytes_present", result.bytes_present},
                     {"duration_ms", result.duration.count()}});
  }
  for (const auto& layer : result.layers)
    out.line(layer.ref + " " + layer.digest.str() + ": " + format_size(layer.bytes_copied) + " copied of " +
             format_size(layer.bytes));
}

}  // namespace dsec::cli
