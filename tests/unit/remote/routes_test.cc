#include "core/remote/routes.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "core/base/error.h"

namespace dsec::remote {
namespace {

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return static_cast<char>(c - 'a' + 'A'); });
  return text;
}

TEST_CASE("the table of calls is the contract's, and in the order of the enumeration", "[remote]") {
  const YAML::Node contract = YAML::LoadFile(std::string(DSEC_SOURCE_DIR) + "/core/remote/openapi.yaml");
  std::set<std::string> wanted, is;
  for (const auto& path : contract["paths"])
    for (const auto& method : path.second)
      if (method.first.Scalar() != "parameters")
        wanted.insert(method.second["operationId"].Scalar() + " " + upper(method.first.Scalar()) + " " +
                      path.first.Scalar());
  for (const Route& route : routes()) {
    is.insert(std::string(route.name) + " " + route.method + " " + route.path);
    CHECK(&route_of(route.call) == &route);
  }
  CHECK(is == wanted);
}

TEST_CASE("what a client asks for is what the edge understands", "[remote]") {
  const std::string nasty = "a/b?c=d&e%20 \xff\xc3\xa4+#";
  const Found found = find_route("GET", target_of(Call::CopyOut, {{"id", nasty}, {"path", nasty}}));
  REQUIRE(found.route);
  CHECK(found.route->call == Call::CopyOut);
  CHECK(found.parameters.at("id") == nasty);
  CHECK(found.parameters.at("path") == nasty);
  for (const Route& route : routes()) {
    Parameters parameters;
    for (const char* name : {"id", "exec_id", "session", "port", "op_id", "ref"})
      if (std::string(route.path).find("{" + std::string(name) + "}") != std::string::npos) parameters[name] = nasty;
    const Found again = find_route(route.method, target_of(route.call, parameters));
    REQUIRE(again.route);
    CHECK(again.route->call == route.call);
    CHECK(again.parameters == parameters);
  }
}

TEST_CASE("what is no path of the contract is none", "[remote]") {
  for (const char* target : {"", "*", "v1/sandboxes", "/v1", "/v1/sandboxes/", "/v1/sandboxes/a/", "/v1//a",
                             "/v1/sandboxes/a/b", "http://x/v1/sandboxes"})
    CHECK(find_route("GET", target).route == nullptr);
  CHECK(find_route("PUT", "/v1/sandboxes").method_differs);
  CHECK_FALSE(find_route("GET", "/v1/sandboxes?x").method_differs);
  // The path decides whom a call is about.
  CHECK(find_route("GET", "/v1/sandboxes/a?id=b").parameters.at("id") == "a");
  CHECK(find_route("GET", "/v1/sandboxes/%zz%").parameters.at("id") == "%zz%");
}

TEST_CASE("a call without what its path needs is refused", "[remote]") {
  CHECK_THROWS_AS(target_of(Call::Inspect, {}), Error);
  CHECK_THROWS_AS(target_of(Call::Inspect, {{"id", ""}}), Error);
}

}  // namespace
}  // namespace dsec::remote
