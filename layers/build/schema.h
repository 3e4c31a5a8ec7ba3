#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace YAML {
class Node;
}

namespace dsec::layers {

/// The shape that a value of dsec.yaml may have. One table of shapes both checks a file and becomes the JSON Schema.
struct Shape {
  enum class Kind { Text, Number, Integer, Flag, Size, Duration, LayerName, LayerRef, List, Map, Object, OneOf };
  struct Field;

  Kind kind = Kind::Text;
  std::string description;
  std::vector<std::string> words;  ///< Text: the only values allowed, when not empty
  std::vector<Shape> of;           ///< List, Map: one, of the elements; OneOf: the alternatives
  std::vector<Field> fields;       ///< Object: every key allowed
  std::string key_shape;           ///< Map: "layer", "environment" or empty: what keys must look like
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

/// The whole of dsec.yaml.
const Shape& project_shape();

/// All that is wrong with `node`, not the first only.
std::vector<Problem> check_shape(const YAML::Node& node, const Shape& shape);

/// JSON Schema (draft 2020-12) of dsec.yaml, for editors.
Json project_json_schema();

}  // namespace dsec::layers
