#include "core/engine/secrets.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_bytes.h"

namespace dsec::engine {
namespace {

constexpr std::string_view kMask = "********";
// A shorter value stands in too much that has nothing to do with it.
constexpr std::size_t kShortest = 6;

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return result;
}

}  // namespace

const std::vector<std::string>& SecretMask::default_words() {
  static const std::vector<std::string> words{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL"};
  return words;
}

SecretMask::SecretMask(std::vector<std::string> words) : words_(std::move(words)) {
  for (std::string& word : words_) word = upper(word);
}

bool SecretMask::is_secret(std::string_view variable) const {
  const std::string name = upper(variable);
  return std::any_of(words_.begin(), words_.end(),
                     [&](const std::string& word) { return name.find(word) != std::string::npos; });
}

void SecretMask::learn(const std::vector<std::string>& env) {
  for (const std::string& entry : env) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || entry.size() - equals - 1 < kShortest) continue;
    if (is_secret(std::string_view(entry).substr(0, equals))) values_.push_back(entry.substr(equals + 1));
  }
  // The longest first: one may be the beginning of another.
  std::sort(values_.begin(), values_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

void SecretMask::learn(const Trajectory& trajectory) {
  learn(trajectory.header.spec.config.env);
  for (const Operation& operation : trajectory.operations)
    if (operation.request.find("\"env\"") != std::string::npos) learn(exec_spec_of(operation).env);
}

std::string SecretMask::text(std::string text) const {
  for (const std::string& value : values_)
    for (std::size_t at = 0; (at = text.find(value, at)) != std::string::npos; at += kMask.size())
      text.replace(at, value.size(), kMask);
  return text;
}

std::string SecretMask::variable(const std::string& entry) const {
  const std::size_t equals = entry.find('=');
  if (equals == std::string::npos || equals + 1 == entry.size() ||
      !is_secret(std::string_view(entry).substr(0, equals)))
    return text(entry);
  return entry.substr(0, equals + 1) + std::string(kMask);
}

Json SecretMask::json(const Json& value) const {
  if (value.is_string()) return text(value.get<std::string>());
  if (value.is_object() && value.size() == 1 && value.contains("base64")) return json_bytes(text(bytes_of_json(value)));
  if (!value.is_structured()) return value;
  Json masked = value;
  for (auto& [key, member] : masked.items()) {
    if (key == "env" && member.is_array()) {
      for (Json& entry : member) entry = json_bytes(variable(bytes_of_json(entry)));
    } else {
      member = json(member);
    }
  }
  return masked;
}

Operation SecretMask::operation(Operation operation) const {
  operation.request = canonical_json(json(parse_json(operation.request, "request")));
  if (!operation.done) return operation;
  Operation::Done& done = *operation.done;
  done.result = canonical_json(json(parse_json(done.result, "result")));
  for (std::string* data : {&done.stdout_data, &done.stderr_data, &done.stdin_data}) *data = text(std::move(*data));
  return operation;
}

TrajectoryHeader SecretMask::header(TrajectoryHeader header) const {
  for (std::string& entry : header.spec.config.env) entry = variable(entry);
  return header;
}

}  // namespace dsec::engine
