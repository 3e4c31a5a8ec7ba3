#include "cli/layer_json.h"

#include <nlohmann/json.hpp>

#include "cli/output.h"

namespace dsec::cli {

Json to_json(const engine::StoredLayer& layer, bool on_demand) {
  return {{"digest", layer.digest.str()},
          {"name", layer.manifest.name.str()},
          {"tags", layer.tags},
          {"labels", layer.labels},
          {"added", iso_time(layer.added)},
          {"checked", layer.trusted},
          {"in_place", layer.in_place},
          {"on_demand", on_demand},
          {"bytes", layer.manifest.total_size()},
          {"manifest", Json::parse(layer.manifest.canonical())}};
}

}  // namespace dsec::cli
