#include "core/engine/secrets.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/base/json_bytes.h"

namespace dsec::engine {
namespace {

constexpr std::string_view kStars = "********";
constexpr char kBlank = 'X';
// A shorter value stands in too much that has nothing to do with it.
constexpr std::size_t kShortest = 6;

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return result;
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// What stands for bytes as json_bytes() writes them; nothing else.
std::optional<std::string> bytes_in(const Json& value) {
  if (!value.is_string() && !(value.is_object() && value.size() == 1 && value.contains("base64"))) return std::nullopt;
  try {
    return bytes_of_json(value);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Headers that carry a secret whatever they are called.
bool is_secret_header(std::string_view name) {
  const std::string text = upper(name);
  return text == "AUTHORIZATION" || text == "PROXY-AUTHORIZATION" || text == "COOKIE";
}

}  // namespace

const std::vector<std::string>& SecretMask::default_words() {
  static const std::vector<std::string> words{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL"};
  return words;
}

SecretMask::SecretMask(std::vector<std::string> words, Form form) : words_(std::move(words)), form_(form) {
  for (std::string& word : words_) word = upper(word);
}

SecretMask SecretMask::with(Form form) const {
  SecretMask other = *this;
  other.form_ = form;
  return other;
}

bool SecretMask::is_secret(std::string_view variable) const {
  const std::string name = upper(variable);
  return std::any_of(words_.begin(), words_.end(),
                     [&](const std::string& word) { return name.find(word) != std::string::npos; });
}

void SecretMask::learn_value(std::string_view value) {
  const auto add = [&](std::string_view part) {
    if (part.size() < kShortest || std::find(values_.begin(), values_.end(), part) != values_.end()) return;
    values_.emplace_back(part);
  };
  add(value);
  // A terminal ends lines in another way, and what is shown of a key is often a line of it.
  if (value.find('\n') == std::string_view::npos) return;
  while (!value.empty()) {
    const std::size_t end = std::min(value.find('\n'), value.size());
    add(value.substr(0, end));
    value.remove_prefix(std::min(end + 1, value.size()));
  }
}

void SecretMask::learn(const std::vector<std::string>& env) {
  for (const std::string& entry : env) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    if (is_secret(std::string_view(entry).substr(0, equals))) learn_value(std::string_view(entry).substr(equals + 1));
  }
  // The longest first: one may be the beginning of another.
  std::sort(values_.begin(), values_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

// "export NAME=value", "NAME='value' command": of what a shell would expand nothing is known.
void SecretMask::learn_words(std::string_view text) {
  for (std::size_t equals = text.find('='); equals != std::string_view::npos; equals = text.find('=', equals + 1)) {
    std::size_t begin = equals;
    while (begin > 0 && is_name_character(text[begin - 1])) --begin;
    if (begin == equals || !is_secret(text.substr(begin, equals - begin))) continue;
    std::string_view value = text.substr(equals + 1);
    if (!value.empty() && (value.front() == '\'' || value.front() == '"')) {
      const char quoted = value.front();
      value.remove_prefix(1);
      value = value.substr(0, value.find(quoted));
    } else {
      value = value.substr(0, value.find_first_of(" \t\r\n;&|()<>\"'`"));
    }
    if (value.find('$') == std::string_view::npos) learn_value(value);
  }
}

void SecretMask::learn(const Trajectory& trajectory) {
  for (const Operation& operation : trajectory.operations) {
    const Json request = parse_json(operation.request, "request");
    const auto strings = [&](const char* key, const auto& take) {
      const auto found = request.find(key);
      if (found == request.end() || !found->is_array()) return;
      for (const Json& entry : *found)
        if (const auto text = bytes_in(entry)) take(*text);
    };
    strings("env", [&](const std::string& entry) { learn(std::vector{entry}); });
    strings("argv", [&](const std::string& word) { learn_words(word); });
    strings("headers", [&](const std::string& header) {
      const std::size_t colon = header.find(':');
      if (colon == std::string::npos) return;
      const std::string name = header.substr(0, colon);
      if (!is_secret(name) && !is_secret_header(name)) return;
      const std::size_t begin = header.find_first_not_of(' ', colon + 1);
      if (begin != std::string::npos) learn_value(std::string_view(header).substr(begin));
    });
    if (const auto command = request.find("command"); command != request.end())
      if (const auto text = bytes_in(*command)) learn_words(*text);
  }
  for (const auto& [key, value] : trajectory.header.spec.labels)
    if (is_secret(key)) learn_value(value);
  learn(trajectory.header.spec.config.env);
}

std::string SecretMask::instead_of(std::size_t size) const {
  return form_ == Form::Stars ? std::string(kStars) : std::string(size, kBlank);
}

std::string SecretMask::text(std::string text) const {
  if (values_.empty()) return text;
  SecretScan scan(*this);
  scan.push(text);
  const std::vector<SecretScan::Place> places = scan.finish();
  for (auto place = places.rbegin(); place != places.rend(); ++place)
    text.replace(place->begin, place->end - place->begin, instead_of(place->end - place->begin));
  return text;
}

std::string SecretMask::variable(const std::string& entry) const {
  const std::size_t equals = entry.find('=');
  if (equals == std::string::npos || equals + 1 == entry.size() ||
      !is_secret(std::string_view(entry).substr(0, equals)))
    return text(entry);
  return entry.substr(0, equals + 1) + instead_of(entry.size() - equals - 1);
}

Json SecretMask::json(const Json& value) const {
  if (const auto bytes = bytes_in(value)) return json_bytes(text(*bytes));
  if (!value.is_structured()) return value;
  if (value.is_array()) {
    Json masked = Json::array();
    for (const Json& member : value) masked.push_back(json(member));
    return masked;
  }
  Json masked = Json::object();
  for (const auto& [key, member] : value.items()) {
    Json& into = masked[text(key)];
    if (key != "env" || !member.is_array()) {
      into = json(member);
      continue;
    }
    into = Json::array();
    for (const Json& entry : member) {
      const auto bytes = bytes_in(entry);
      into.push_back(bytes ? json_bytes(variable(*bytes)) : json(entry));
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
  const auto mask = [&](std::string& value) { value = text(std::move(value)); };
  SandboxSpec& spec = header.spec;
  for (std::string& entry : spec.config.env) entry = variable(entry);
  for (std::string* value :
       {&header.environment, &spec.name, &spec.environment, &spec.hostname, &spec.config.workdir, &spec.config.user})
    mask(*value);
  for (std::vector<std::string>* words : {&spec.config.entrypoint, &spec.config.command})
    for (std::string& word : *words) mask(word);
  for (TrajectoryHeader::Layer& layer : header.layers) mask(layer.name);
  for (BindMount& bind : spec.binds) mask(bind.source), mask(bind.target);
  for (std::map<std::string, std::string>* all : {&spec.labels, &spec.config.labels}) {
    std::map<std::string, std::string> labels;
    for (const auto& [key, value] : *all)
      labels[text(key)] = is_secret(key) && !value.empty() ? instead_of(value.size()) : text(value);
    *all = std::move(labels);
  }
  return header;
}

void SecretScan::push(std::string_view data) {
  constexpr std::size_t kPiece = 1 << 20;
  while (!data.empty()) {
    window_ += data.substr(0, kPiece);
    data.remove_prefix(std::min(kPiece, data.size()));
    search();
    const std::size_t keep = mask_->values().empty() ? 0 : mask_->values().front().size();
    if (window_.size() <= keep) continue;
    const std::size_t gone = window_.size() - keep;
    window_.erase(0, gone);
    at_ += gone;
  }
}

void SecretScan::search() {
  for (const std::string& value : mask_->values()) {
    const std::uint64_t first = searched_ - std::min<std::uint64_t>(searched_, value.size() - 1);
    for (std::size_t at = first > at_ ? first - at_ : 0; (at = window_.find(value, at)) != std::string::npos; ++at)
      places_.push_back({at_ + at, at_ + at + value.size()});
    if (!after_gap_) continue;
    // The end of one that began in what is missing.
    for (std::size_t size = std::min(value.size() - 1, window_.size()); size > 0; --size)
      if (value.compare(value.size() - size, size, window_, 0, size) == 0) {
        places_.push_back({at_, at_ + size});
        break;
      }
  }
  searched_ = at_ + window_.size();
  if (!mask_->values().empty() && window_.size() >= mask_->values().front().size()) after_gap_ = false;
}

void SecretScan::gap() {
  for (const std::string& value : mask_->values())
    for (std::size_t size = std::min(value.size() - 1, window_.size()); size > 0; --size)
      if (window_.compare(window_.size() - size, size, value, 0, size) == 0) {
        places_.push_back({at_ + window_.size() - size, at_ + window_.size()});
        break;
      }
  at_ += window_.size();
  window_.clear();
  after_gap_ = true;
}

std::vector<SecretScan::Place> SecretScan::finish() {
  std::sort(places_.begin(), places_.end(),
            [](const Place& a, const Place& b) { return a.begin < b.begin || (a.begin == b.begin && a.end < b.end); });
  std::vector<Place> merged;
  for (const Place& place : places_) {
    if (!merged.empty() && place.begin < merged.back().end)
      merged.back().end = std::max(merged.back().end, place.end);
    else
      merged.push_back(place);
  }
  places_.clear();
  return merged;
}

void blank(std::string& data, std::uint64_t at, const std::vector<SecretScan::Place>& places) {
  const std::uint64_t end = at + data.size();
  auto place = std::upper_bound(places.begin(), places.end(), at,
                                [](std::uint64_t from, const SecretScan::Place& one) { return from < one.end; });
  for (; place != places.end() && place->begin < end; ++place) {
    const std::uint64_t from = std::max(place->begin, at), to = std::min(place->end, end);
    std::fill(data.begin() + static_cast<std::ptrdiff_t>(from - at),
              data.begin() + static_cast<std::ptrdiff_t>(to - at), kBlank);
  }
}

}  // namespace dsec::engine
