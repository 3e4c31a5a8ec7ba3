#include "core/base/json.h"

#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"

namespace dsec {
namespace {

constexpr int kDeepest = 64;
// Each takes many times the bytes that it has in the text.
constexpr std::size_t kMostValues = 4'000'000;

std::string position(std::string_view text, std::size_t offset) {
  std::size_t line = 1, column = 1;
  for (std::size_t i = 0; i + 1 < offset && i < text.size(); ++i) {
    column = text[i] == '\n' ? 1 : column + 1;
    line += text[i] == '\n';
  }
  return std::to_string(line) + ":" + std::to_string(column);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view origin) {
  std::vector<std::set<std::string>> keys;
  std::size_t values = 0;
  const auto refuse = [&](const std::string& why) { return usage_error(std::string(origin) + ": " + why); };
  // What is refused is so at once: it may be large.
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) throw refuse("nested deeper than " + std::to_string(kDeepest));
    if (++values > kMostValues) throw refuse("more than " + std::to_string(kMostValues) + " values");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty() && !keys.back().insert(parsed.get<std::string>()).second)
      throw refuse("key " + quote(parsed.get<std::string>()) + " stands twice in one object");
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    throw usage_error(std::string(origin) + ":" + position(text, error.byte) + ": no valid JSON");
  } catch (const Json::out_of_range&) {
    throw refuse("a number is larger than any that can be kept");
  }
}

std::string canonical_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

namespace {

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) throw usage_error("an object with " + quote(key) + " is expected");
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string to_string(const Json& value, const char* key) {
  if (!value.is_string()) throw usage_error(quote(key) + " is no string");
  return value.get<std::string>();
}

std::uint64_t to_u64(const Json& value, const char* key) {
  if (!value.is_number_unsigned()) throw usage_error(quote(key) + " is no number of 0 or more");
  return value.get<std::uint64_t>();
}

const Json& required(const Json& object, const char* key) {
  const Json* value = member(object, key);
  if (!value) throw usage_error(quote(key) + " is missing");
  return *value;
}

}  // namespace

std::string json_string(const Json& object, const char* key) { return to_string(required(object, key), key); }
std::uint64_t json_u64(const Json& object, const char* key) { return to_u64(required(object, key), key); }
std::string json_string_or(const Json& object, const char* key, std::string fallback) {
  const Json* value = member(object, key);
  return value ? to_string(*value, key) : fallback;
}
std::uint64_t json_u64_or(const Json& object, const char* key, std::uint64_t fallback) {
  const Json* value = member(object, key);
  return value ? to_u64(*value, key) : fallback;
}

}  // namespace dsec
