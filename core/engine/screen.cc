#include "core/engine/screen.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"type", "key", "move", "click", "scroll", "drag"};

Json point_json(const ScreenPoint& point) { return Json::array({point.x, point.y}); }

std::optional<ScreenPoint> point_from(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return std::nullopt;
  const bool is_point =
      found->is_array() && found->size() == 2 && (*found)[0].is_number_unsigned() && (*found)[1].is_number_unsigned();
  if (!is_point) throw usage_error(quote(key) + " is no point of a screen");
  return ScreenPoint{(*found)[0].get<std::uint32_t>(), (*found)[1].get<std::uint32_t>()};
}

}  // namespace

Json to_json(const ScreenInput& input) {
  using Kind = ScreenInput::Kind;
  Json json{{"action", kKinds[static_cast<std::size_t>(input.kind)]}};
  if (input.kind == Kind::Type || input.kind == Kind::Key) json["text"] = input.text;
  if (input.at) json["at"] = point_json(*input.at);
  if (input.to) json["to"] = point_json(*input.to);
  if (input.kind == Kind::Click || input.kind == Kind::Drag) json["button"] = input.button;
  if (input.kind == Kind::Click || input.kind == Kind::Scroll) json["count"] = input.count;
  if (input.kind == Kind::Scroll) json["up"] = input.up;
  return json;
}

ScreenInput screen_input_from(const Json& json) {
  const std::string action = json_string(json, "action");
  const auto kind = std::find(kKinds.begin(), kKinds.end(), action);
  if (kind == kKinds.end()) throw usage_error("the action " + quote(action) + " at a screen is unknown");
  ScreenInput input;
  input.kind = static_cast<ScreenInput::Kind>(kind - kKinds.begin());
  input.text = json_string_or(json, "text", "");
  input.at = point_from(json, "at");
  input.to = point_from(json, "to");
  input.button = json_string_or(json, "button", input.button);
  input.count = static_cast<std::uint32_t>(std::min<std::uint64_t>(json_u64_or(json, "count", 1), UINT32_MAX));
  if (const auto up = json.find("up"); up != json.end()) input.up = up->is_boolean() && up->get<bool>();
  return input;
}

}  // namespace dsec::engine
