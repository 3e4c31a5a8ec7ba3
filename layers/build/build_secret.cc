#include "layers/build/build_secret.h"

#include <cstdlib>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::layers {
namespace {

// As the client of other builders has it.
constexpr std::uint64_t kLargest = 500 << 10;

}  // namespace

std::pair<std::string, BuildSecret> BuildSecret::parse(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    return usage_error("--secret " + quote(std::string(text)) + ": " + why)
        .hint("--secret id=NAME,src=FILE or --secret id=NAME,env=VARIABLE");
  };
  std::string id;
  BuildSecret secret;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view field = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(field.size() + 1, rest.size()));
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) throw refuse(quote(std::string(field)) + " has no value");
    const std::string_view name = field.substr(0, equals);
    const std::string value(field.substr(equals + 1));
    if (name == "id")
      id = value;
    else if (name == "src" || name == "source")
      secret.file = value;
    else if (name == "env")
      secret.variable = value;
    else if (name != "type" || (value != "file" && value != "env"))
      throw refuse("there is no " + quote(std::string(name)));
  }
  if (id.empty()) throw refuse("it has no id");
  if (!secret.file.empty() && !secret.variable.empty()) throw refuse("it is a file or a variable, not both");
  if (secret.file.empty() && secret.variable.empty()) secret.variable = id;
  return {std::move(id), std::move(secret)};
}

std::string BuildSecret::value() const {
  if (variable.empty()) return read_file(file, kLargest);
  const char* const found = std::getenv(variable.c_str());
  if (!found) throw usage_error("the variable " + variable + " of this environment is not set");
  return found;
}

}  // namespace dsec::layers
