#include "core/model/lock.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"

namespace dsec {

Lock Lock::parse(std::string_view text, std::string_view origin) {
  const Json json = parse_json(text, origin);
  return attempt("lock file " + quote(origin) + " is not valid", [&] {
    if (const std::uint64_t version = json_u64(json, "version"); version != kVersion)
      throw usage_error("version " + std::to_string(version) + " is unknown; this dsec knows " +
                        std::to_string(kVersion));
    try {
      Lock lock;
      lock.args = json.value("args", std::map<std::string, std::string>{});
      lock.builder = json_string(json, "builder");
      lock.mkfs = json_string(json, "mkfs");
      lock.kernel = json_string(json, "kernel");
      lock.platform = json_string(json, "platform");
      for (const auto& [ref, layer] : json.at("layers").items())
        lock.layers.emplace(ref, LockedLayer{Digest::parse(json_string(layer, "digest")),
                                             layer.value("inputs", std::map<std::string, std::string>{}),
                                             json_string(layer, "recipe")});
      for (const auto& [name, digests] : json.at("environments").items())
        for (const Json& digest : digests) lock.environments[name].push_back(Digest::parse(digest.get<std::string>()));
      return lock;
    } catch (const nlohmann::json::exception& error) {
      throw usage_error(error.what());
    }
  });
}

std::string Lock::str() const {
  Json json = {{"version", kVersion}, {"args", args},     {"builder", builder},
               {"mkfs", mkfs},        {"kernel", kernel}, {"platform", platform}};
  json["layers"] = Json::object();
  for (const auto& [ref, layer] : layers)
    json["layers"][ref] = {{"digest", layer.digest.str()}, {"inputs", layer.inputs}, {"recipe", layer.recipe}};
  json["environments"] = Json::object();
  for (const auto& [name, digests] : environments) {
    json["environments"][name] = Json::array();
    for (const Digest& digest : digests) json["environments"][name].push_back(digest.str());
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dsec
