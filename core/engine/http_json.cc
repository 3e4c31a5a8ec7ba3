#include "core/engine/http_json.h"

#include <nlohmann/json.hpp>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/json_bytes.h"

namespace dsec::engine {

Json http_json(const HttpRequest& request, std::uint16_t port) {
  Json json = {{"method", request.method}, {"port", port}, {"path", json_bytes(request.path)}};
  for (const std::string& header : request.headers) json["headers"].push_back(json_bytes(header));
  if (!request.body.empty()) {
    json["body_bytes"] = request.body.size();
    json["body_sha256"] = Digest::of(request.body).hex();
  }
  return json;
}

HttpRequest http_request_from(const Json& json, std::uint16_t& port) {
  const std::uint64_t number = json_u64(json, "port");
  if (number < 1 || number > 65535) throw usage_error("port " + std::to_string(number) + " is none");
  port = static_cast<std::uint16_t>(number);
  HttpRequest request;
  request.method = json_string(json, "method");
  if (!json.contains("path")) throw usage_error("'path' is missing");
  request.path = bytes_of_json(json["path"]);
  for (const Json& header : json.value("headers", Json::array())) request.headers.push_back(bytes_of_json(header));
  request.host = "localhost:" + std::to_string(port);
  return request;
}

}  // namespace dsec::engine
