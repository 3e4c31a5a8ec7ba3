#include "layers/build/schema.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/units.h"
#include "core/model/environment_spec.h"
#include "core/model/function_language.h"
#include "core/model/hostname.h"
#include "core/model/layer_ref.h"

namespace dsec::layers {
namespace {

using namespace std::string_view_literals;
using Kind = Shape::Kind;

Shape simple(Kind kind, std::string description) {
  Shape shape;
  shape.kind = kind;
  shape.description = std::move(description);
  return shape;
}
Shape text(std::string description) { return simple(Kind::Text, std::move(description)); }
Shape words(std::string description, std::vector<std::string> values) {
  Shape shape = text(std::move(description));
  shape.words = std::move(values);
  return shape;
}
Shape nested(Kind kind, std::string description, std::vector<Shape> of, std::string keys = "") {
  Shape shape = simple(kind, std::move(description));
  shape.of = std::move(of);
  shape.key_shape = std::move(keys);
  return shape;
}
Shape list(std::string description, Shape of) { return nested(Kind::List, std::move(description), {std::move(of)}); }
Shape map(std::string description, Shape of, std::string keys = "") {
  return nested(Kind::Map, std::move(description), {std::move(of)}, std::move(keys));
}
Shape object(std::string description, std::vector<Shape::Field> fields) {
  Shape shape = simple(Kind::Object, std::move(description));
  shape.fields = std::move(fields);
  return shape;
}

std::vector<Shape::Field> policy_fields() {
  return {{"allow", list("Presets, host names, addresses and ranges, with ports", text(""))},
          {"deny", list("What stays denied whatever allow says", text(""))},
          {"strict", simple(Kind::Flag, "Only TLS and HTTP that show whom they are for")},
          {"inject", list("Secrets added to plain HTTP requests, which go on over TLS",
                          object("", {{"host", text("Host name"), true},
                                      {"secret", text("env:NAME or file:/PATH of the host"), true},
                                      {"header", text("Authorization by default")},
                                      {"prefix", text("Before the secret, like \"Bearer \"")},
                                      {"port", simple(Kind::Integer, "443 by default")}}))},
          {"limits", object("", {{"connections", simple(Kind::Integer, "Open at once")},
                                 {"bytes", simple(Kind::Size, "Both ways, over the sandbox's life")}})}};
}

Shape network_shape() {
  std::vector<Shape::Field> fields = policy_fields();
  fields.push_back({"intercept_tls", simple(Kind::Flag, "The gateway reads TLS, with an authority of its own")});
  fields.push_back({"phase", words("The phase it begins in", {"setup", "agent", "verify"})});
  const Shape phase = nested(Kind::OneOf, "none or a policy", {words("", {"none"}), object("", policy_fields())});
  fields.push_back({"phases", object("Policies of phases", {{"setup", phase}, {"agent", phase}, {"verify", phase}})});
  return nested(Kind::OneOf, "none, host, or a policy", {words("", {"none", "host"}), object("", std::move(fields))});
}

Shape step_shape() {
  const Shape command = nested(Kind::OneOf, "A string for /bin/sh -c, or a list of arguments",
                               {simple(Kind::Command, ""), list("", text(""))});
  Shape step =
      object("One step; its kind is the key",
             {{"run", command},
              {"copy", object("Copy files of the project into the layer",
                              {{"from", text("Path below the project"), true},
                               {"to", text("Absolute path inside; a trailing '/' means into it"), true},
                               {"mode", text("Octal permission bits for files, like \"0644\"")}})},
              {"git", object("Check out a commit",
                             {{"url", text("URL or path of the repository"), true},
                              {"rev", text("Commit, tag or branch"), true},
                              {"to", text("Absolute path inside; /workspace by default")},
                              {"history", words("What of the history comes along", {"past", "none", "full"})}})},
              {"env", map("Environment of later steps and of the layer", text(""), "variable")},
              {"workdir", text("Working directory of later steps and of the layer")},
              {"user", text("User of later steps and of the layer")},
              {"network", network_shape()}});
  return step;
}

Shape layer_shape() {
  return object("A layer, either from a source or built by steps on another layer",
                {{"tag", text("Tag of the layer; latest by default")},
                 {"from", text("A source, such as oci-archive:FILE, dir:PATH or git:URL@REV")},
                 {"to", text("Where the files of `from` go; / by default, /workspace for git")},
                 {"history", words("For git sources: what of the history comes along", {"past", "none", "full"})},
                 {"platform", text("Platform to take from an image index, like linux/amd64")},
                 {"compress", words("Compression of the image", {"none", "lz4", "zstd"})},
                 {"on", simple(Kind::LayerRef, "The layer that the steps run on")},
                 {"steps", list("What makes the layer, in order", step_shape())},
                 {"scrub", list("Further paths (patterns) to remove after the steps", text(""))},
                 {"keep", list("Paths (patterns) of the scrub list to leave alone", text(""))},
                 {"labels", map("Labels of the layer", text(""))}});
}

Shape class_shape() { return words("What counts when processors are short", {"default", "latency", "batch"}); }

Shape devices_shape() {
  return list("Character devices of the host, /dev/NAME or /dev/NAME:/dev/NAME_INSIDE", text(""));
}

Shape environment_shape() {
  return object("A base, at most one workspace and toolkits in order, with run settings",
                {{"base", simple(Kind::LayerRef, "The bottom layer"), true},
                 {"workspace", simple(Kind::LayerRef, "The repository to work on")},
                 {"toolkits", list("Tools, bottom to top", simple(Kind::LayerRef, ""))},
                 {"workdir", text("Working directory of commands")},
                 {"env", map("Environment of commands", text(""), "variable")},
                 {"user", text("User of commands")},
                 {"hostname", simple(Kind::Hostname, "Host name inside")},
                 {"backend", words("How the sandbox is isolated", {"container", "microvm", "fullvm", "fncall"})},
                 {"limits", object("Limits; absent ones are unlimited",
                                   {{"cpus", simple(Kind::Number, "Cores")},
                                    {"memory", simple(Kind::Size, "Bytes of memory, like 4GiB")},
                                    {"pids", simple(Kind::Integer, "Processes and threads")},
                                    {"disk", simple(Kind::Size, "Bytes of the writable layer")},
                                    {"output", simple(Kind::Size, "Bytes kept of each stream of a command")},
                                    {"class", class_shape()}})},
                 {"devices", devices_shape()},
                 {"lifetime", object("When the sandbox ends by itself",
                                     {{"idle", simple(Kind::Duration, "After so long without a command, like 5m")},
                                      {"idle_pause", simple(Kind::Duration, "It is paused after so long without one")},
                                      {"max", simple(Kind::Duration, "So long after its creation")}})},
                 {"network", network_shape()},
                 {"labels", map("Labels of the sandbox", text(""))},
                 {"accept_conflicts", simple(Kind::Flag, "Accept that layers hide each other's directories")}});
}

Shape command_shape(std::string description) {
  return nested(Kind::OneOf, std::move(description), {text(""), list("", text(""))});
}

// What one stage of a call may use.
std::vector<Shape::Field> stage_limits() {
  return {{"time", simple(Kind::Duration, "Of the clock, 10s by default")},
          {"cpu_time", simple(Kind::Duration, "Processor time of all its processes")},
          {"output", simple(Kind::Size, "Bytes of each stream, 1MiB by default; more ends the call")}};
}

Shape language_shape() {
  std::vector<std::string> names;
  for (const FunctionLanguage& each : function_languages()) names.push_back(each.name);
  return words("What command, compile and warm_up are where they are not given", std::move(names));
}

Shape function_shape() {
  std::vector<Shape::Field> limits = stage_limits();
  limits.insert(limits.end(), {{"cpus", simple(Kind::Number, "Cores")},
                               {"memory", simple(Kind::Size, "Bytes of memory, like 256MiB")},
                               {"pids", simple(Kind::Integer, "Processes and threads")},
                               {"disk", simple(Kind::Size, "Bytes of the writable layer")},
                               {"class", class_shape()}});
  return object(
      "A type of function calls: a command with limits in an environment",
      {{"environment", text("The environment that a call runs in"), true},
       {"language", language_shape()},
       {"command", command_shape("A string for /bin/sh -c, or a list of arguments; or else that of `language`")},
       {"compile", command_shape("Runs before the command, with the files of the call")},
       {"warm_up", command_shape("Runs once when a sandbox of the pool is made")},
       {"preload", simple(Kind::Flag, "Start the command with the sandbox; it waits for its input")},
       {"limits", object("Limits of a call", std::move(limits))},
       {"compile_limits", object("Limits of compile", stage_limits())},
       {"workdir", text("Where files of a call are put and commands start")},
       {"devices", devices_shape()},
       {"gpus", object("Devices of which each call gets some",
                       {{"devices", list("To choose from", text("/dev/NAME")), true},
                        {"count", simple(Kind::Integer, "How many; 1 by default")},
                        {"mode", words("Alone (default), or with others", {"exclusive", "shared"})},
                        {"wait", simple(Kind::Duration, "For one to be free, 60s by default")}})},
       {"pool", simple(Kind::Integer, "Sandboxes to have ready; none by default")},
       {"pool_idle", simple(Kind::Duration, "A sandbox that waited so long goes, 10m by default")}});
}

Shape whole_shape() {
  return object("Layers, environments and functions of a project",
                {{"version", simple(Kind::Integer, "Version of this format: 1"), true},
                 {"layers", map("Layers by kind/name", layer_shape(), "layer")},
                 {"environments", map("Environments by name", environment_shape(), "environment")},
                 {"functions", map("Types of function calls by name", function_shape(), "function")}});
}

// ---- checking ----

class Checker {
 public:
  std::vector<Problem> problems;

  void check(const YAML::Node& node, const Shape& shape) {
    switch (shape.kind) {
      case Kind::Object:
        return check_object(node, shape);
      case Kind::Map:
        return check_map(node, shape);
      case Kind::List:
        return check_list(node, shape);
      case Kind::OneOf:
        return check_one_of(node, shape);
      default:
        return check_scalar(node, shape);
    }
  }

 private:
  void report(const YAML::Node& node, std::string text) {
    problems.push_back({node.Mark().line + 1, node.Mark().column + 1, std::move(text)});
  }

  // Reports keys that are no strings and keys that stand twice; the rest goes to `use`.
  template <typename Use>
  void each_key(const YAML::Node& node, Use&& use) {
    std::set<std::string> seen;
    for (const auto& pair : node) {
      if (!pair.first.IsScalar()) {
        report(pair.first, "a key must be a string");
        continue;
      }
      const std::string key = pair.first.Scalar();
      if (!seen.insert(key).second)
        report(pair.first, "key " + quote(key) + " stands twice");
      else
        use(key, pair.first, pair.second);
    }
  }

  void check_object(const YAML::Node& node, const Shape& shape) {
    if (!node.IsMap()) return report(node, "a mapping is expected here");
    std::set<std::string> present;
    each_key(node, [&](const std::string& key, const YAML::Node& key_node, const YAML::Node& value) {
      const auto field =
          std::find_if(shape.fields.begin(), shape.fields.end(), [&](const auto& f) { return f.name == key; });
      if (field == shape.fields.end()) {
        std::vector<std::string> names;
        for (const auto& f : shape.fields) names.push_back(f.name);
        const std::vector<std::string> near = nearest_names(key, names, 1);
        return report(key_node,
                      "unknown key " + quote(key) + (near.empty() ? "" : "; did you mean " + quote(near[0]) + "?"));
      }
      present.insert(key);
      check(value, field->shape);
    });
    for (const auto& field : shape.fields)
      if (field.required && !present.contains(field.name)) report(node, "key " + quote(field.name) + " is missing");
  }

  void check_map(const YAML::Node& node, const Shape& shape) {
    if (!node.IsMap()) return report(node, "a mapping is expected here");
    each_key(node, [&](const std::string& key, const YAML::Node& key_node, const YAML::Node& value) {
      if (shape.key_shape == "layer") try_parse(key_node, [&] { dsec::LayerName::parse(key); });
      if ((shape.key_shape == "environment" || shape.key_shape == "function") && !valid_environment_name(key))
        report(key_node, quote(key) + " is no name for " +
                             (shape.key_shape == "function" ? "a function" : "an environment") +
                             ": letters, digits, '_', '.' and '-'");
      if (shape.key_shape == "variable" && (key.empty() || key.find_first_of("=\0"sv) != std::string::npos))
        report(key_node, quote(key) + " is no name for a variable");
      check(value, shape.of.front());
    });
  }

  void check_list(const YAML::Node& node, const Shape& shape) {
    if (!node.IsSequence()) return report(node, "a list is expected here");
    for (const YAML::Node& item : node) check(item, shape.of.front());
  }

  // The alternatives differ in the kind of node, so the one that fits the node's kind is the one that is meant.
  void check_one_of(const YAML::Node& node, const Shape& shape) {
    for (const Shape& alternative : shape.of) {
      const bool fits = alternative.kind == Kind::List     ? node.IsSequence()
                        : alternative.kind == Kind::Object ? node.IsMap()
                                                           : node.IsScalar();
      if (fits) return check(node, alternative);
    }
    report(node, "expected: " + shape.description);
  }

  void check_scalar(const YAML::Node& node, const Shape& shape) {
    if (!node.IsScalar()) return report(node, "a single value is expected here");
    const std::string& value = node.Scalar();
    switch (shape.kind) {
      case Kind::Text:
        return check_text(node, shape, value);
      case Kind::Size:
        return try_parse(node, [&] { parse_size(value); });
      case Kind::Duration:
        return try_parse(node, [&] { parse_duration(value); });
      case Kind::Hostname:
        return try_parse(node, [&] { check_hostname(value); });
      case Kind::Command:
        return check_command(node, value);
      case Kind::LayerRef:
        return try_parse(node, [&] { dsec::LayerRef::parse(value); });
      case Kind::Integer:
      case Kind::Number:
        return check_number(node, shape.kind, value);
      case Kind::Flag:
        if (value != "true" && value != "false") report(node, quote(value) + " is neither true nor false");
        return;
      default:
        return;
    }
  }

  void check_text(const YAML::Node& node, const Shape& shape, const std::string& value) {
    if (value.find('\0') != std::string::npos) return report(node, quote(value) + " has a zero byte");
    if (shape.words.empty() || std::find(shape.words.begin(), shape.words.end(), value) != shape.words.end()) return;
    std::string allowed;
    for (const auto& word : shape.words) allowed += (allowed.empty() ? "" : ", ") + word;
    const std::vector<std::string> near = nearest_names(value, shape.words, 1);
    report(node, quote(value) + " is none of " + allowed +
                     (near.empty() ? "" : "; did you mean " + quote(near.front()) + "?"));
  }

  void check_command(const YAML::Node& node, const std::string& value) {
    double number = 0;
    bool flag = false;
    // "?" is the tag of what stands without quotes, so that YAML would take it for a number or a truth value.
    if (node.Tag() == "?" && (YAML::convert<double>::decode(node, number) || YAML::convert<bool>::decode(node, flag)))
      report(node, quote(value) + " is no command; put it in quotes if it is meant as one");
  }

  void check_number(const YAML::Node& node, Kind kind, const std::string& value) {
    const char* const last = value.data() + value.size();
    double number = 0;
    std::uint64_t whole = 0;
    const auto [end, error] = kind == Kind::Integer ? std::from_chars(value.data(), last, whole)
                                                    : std::from_chars(value.data(), last, number);
    if (error != std::errc() || end != last || (kind == Kind::Integer ? whole == 0 : !(number > 0 && number < 1e9)))
      report(node, quote(value) + " is no " + (kind == Kind::Integer ? "whole " : "") + "number above 0");
  }

  template <typename Parse>
  void try_parse(const YAML::Node& node, Parse&& parse) {
    try {
      parse();
    } catch (const Error& error) {
      report(node, error.message());
    }
  }
};

// ---- JSON Schema ----

Json schema_of(const Shape& shape) {
  Json json = Json::object();
  if (!shape.description.empty()) json["description"] = shape.description;
  switch (shape.kind) {
    case Kind::Text:
      // Scalars that YAML would read as numbers are taken as text, so an unquoted 3.11 is accepted as a tag.
      if (shape.words.empty())
        json["type"] = {"string", "number", "boolean"};
      else
        json["enum"] = shape.words;
      break;
    case Kind::Number:
      json["type"] = "number", json["exclusiveMinimum"] = 0;
      break;
    case Kind::Integer:
      json["type"] = "integer", json["minimum"] = 1;
      break;
    case Kind::Flag:
      json["type"] = "boolean";
      break;
    case Kind::Size:
      json["type"] = {"string", "integer"}, json["pattern"] = "^[0-9]+(\\.[0-9]+)?([kKmMgGtT]([iI]?[bB])?|[bB])?$";
      break;
    case Kind::Duration:
      json["type"] = {"string", "integer"}, json["pattern"] = "^([0-9]+(\\.[0-9]+)?(ms|s|m|h|d)?)+$";
      break;
    case Kind::Command:
      json["type"] = "string";
      break;
    case Kind::Hostname:
      json["type"] = {"string", "integer"}, json["pattern"] = "^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,62}[a-zA-Z0-9])?$";
      break;
    case Kind::LayerRef:
      json["type"] = "string", json["pattern"] = "^((base|workspace|toolkit|snapshot)/.+|(sha256:)?[0-9a-f]{4,64})$";
      break;
    case Kind::List:
      json["type"] = "array", json["items"] = schema_of(shape.of.front());
      break;
    case Kind::Map:
      json["type"] = "object";
      json["additionalProperties"] = schema_of(shape.of.front());
      if (shape.key_shape == "layer") json["propertyNames"] = {{"pattern", "^(base|workspace|toolkit|snapshot)/"}};
      if (shape.key_shape == "environment" || shape.key_shape == "function")
        json["propertyNames"] = {{"pattern", "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$"}};
      if (shape.key_shape == "variable") json["propertyNames"] = {{"pattern", "^[^=\\u0000]+$"}};
      break;
    case Kind::OneOf:
      for (const Shape& alternative : shape.of) json["anyOf"].push_back(schema_of(alternative));
      break;
    case Kind::Object:
      json["type"] = "object";
      json["additionalProperties"] = false;
      json["properties"] = Json::object();
      for (const auto& field : shape.fields) {
        json["properties"][field.name] = schema_of(field.shape);
        if (field.required) json["required"].push_back(field.name);
      }
      break;
  }
  return json;
}

}  // namespace

const Shape& project_shape() {
  static const Shape shape = whole_shape();
  return shape;
}

std::vector<Problem> check_shape(const YAML::Node& node, const Shape& shape) {
  Checker checker;
  checker.check(node, shape);
  return std::move(checker.problems);
}

bool is_entry(const std::string& part, const std::string& name, const YAML::Node& node) {
  const std::vector<Shape::Field>& parts = project_shape().fields;
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& field) { return field.name == part; });
  YAML::Node alone;
  alone[name] = node;
  return found != parts.end() && check_shape(alone, found->shape).empty();
}

std::string to_string(const std::filesystem::path& file, const Problem& problem) {
  return file.native() + ":" + std::to_string(problem.line) + ":" + std::to_string(problem.column) + ": " +
         problem.text;
}

Error problems_of(const std::filesystem::path& file, std::vector<Problem> problems) {
  std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  Error error = usage_error(to_string(file, problems.back()));
  for (auto problem = problems.rbegin() + 1; problem != problems.rend(); ++problem)
    error.context(to_string(file, *problem));
  error.context(quote(file.native()) + " has " + std::to_string(problems.size()) +
                (problems.size() == 1 ? " problem" : " problems"));
  return error;
}

Json project_json_schema() {
  Json json = schema_of(project_shape());
  json["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  json["title"] = "dsec.yaml";
  return json;
}

}  // namespace dsec::layers
