#include "cli/build_secrets.h"

#include "core/base/error.h"

namespace dsec::cli {

std::map<std::string, layers::BuildSecret> parse_secrets(const std::vector<std::string>& texts) {
  std::map<std::string, layers::BuildSecret> secrets;
  for (const std::string& text : texts) {
    auto [id, secret] = layers::BuildSecret::parse(text);
    if (!secrets.emplace(id, std::move(secret)).second)
      throw usage_error("the secret " + quote(id) + " is given twice");
  }
  return secrets;
}

}  // namespace dsec::cli
