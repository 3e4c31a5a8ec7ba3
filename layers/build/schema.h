#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"

namespace YAML {
class Node;
}

namespace dsec::layers {

/// The shape that a value of dsec.yaml may have. One table of shapes both checks a file and becomes the JSON Schema.
struct Shape {
  enum class Kind {
    Text,
    Number,
    Integer,
    Flag,
    Size,
    Duration,
    Hostname,
    LayerRef,
    Command,
    List,
    Map,
    Object,
    OneOf
  };
  struct Field;

  /// Text takes any scalar: an unquoted 3.11 is a tag. A Command takes what YAML reads as text alone: a number there is
  /// a mistake.
  Kind kind = Kind::Text;
  std::string description;
  std::vector<std::string> words;  ///< Text: the only values allowed, when not empty
  std::vector<Shape> of;           ///< List, Map: one, of the elements; OneOf: the alternatives
  std::vector<Field> fields;       ///< Object: every key allowed
  std::string key_shape;  ///< Map: "layer", "environment", "function", "variable" or empty: what keys look like
};
struct Shape::Field {
  std::string name;
  Shape shape;
  bool required = false;
};

/// One thing wrong in a file.
struct Problem {
  int line, column;  ///< from 1
  std::string text;
};

/// "dsec.yaml:4:5: unknown key 'form'".
std::string to_string(const std::filesystem::path& file, const Problem& problem);

/// All of them as one Error (Usage), in the order of their places.
Error problems_of(const std::filesystem::path& file, std::vector<Problem> problems);

/// The whole of dsec.yaml.
const Shape& project_shape();

/// All that is wrong with `node`, not the first only.
std::vector<Problem> check_shape(const YAML::Node& node, const Shape& shape);

/// Whether an entry of `layers`, `environments` or `functions` is well-formed with its name.
bool is_entry(const std::string& part, const std::string& name, const YAML::Node& node);

/// JSON Schema (draft 2020-12) of dsec.yaml, for editors.
Json project_json_schema();

}  // namespace dsec::layers
