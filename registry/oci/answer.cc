#include "registry/oci/answer.h"

#include <nlohmann/json.hpp>

#include "core/base/json.h"

namespace dsec::registry {
namespace {

constexpr std::size_t kMostErrors = 3, kLongestMessage = 300;

std::string text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return "";
  // Quoted for its control characters, not for the quotes.
  const std::string quoted = quote(found->get<std::string>().substr(0, kLongestMessage));
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

std::string complaint_of(std::string_view body) {
  Json json;
  try {
    json = parse_json(body, "answer");
  } catch (const Error&) {
    return "";
  }
  std::string text;
  const auto add = [&](const std::string& code, const std::string& message) {
    const std::string one = code.empty() || message.empty() ? code + message : code + ": " + message;
    if (!one.empty()) text += (text.empty() ? "" : "; ") + one;
  };
  if (!json.is_object()) return "";
  const auto errors = json.find("errors");
  if (errors == json.end() || !errors->is_array()) {
    add(text_in(json, "error"), text_in(json, "error_description"));
    add("", text_in(json, "details"));
    return text;
  }
  std::size_t shown = 0;
  for (const Json& error : *errors)
    if (error.is_object() && shown++ < kMostErrors) add(text_in(error, "code"), text_in(error, "message"));
  return text;
}

Error registry_error(const http::Request& request, const http::Answer& answer) {
  const Error plain = http::answer_error(request, answer);
  const std::string complaint = complaint_of(answer.body);
  Error error(plain.kind(), std::string(plain.chain().back()) + (complaint.empty() ? "" : ": " + complaint));
  for (std::size_t i = plain.chain().size() - 1; i-- > 0;) error.context(plain.chain()[i]);
  for (const std::string& hint : plain.hints()) error.hint(hint);
  if (answer.body.find("HTTP request to an HTTPS server") != std::string::npos ||
      answer.body.find("HTTP request was sent to HTTPS port") != std::string::npos)
    error.hint("'plain_http: false' for " + answer.url.authority() + " under 'hosts' of config.yaml, dsec-home(5)");
  return error;
}

}  // namespace dsec::registry
