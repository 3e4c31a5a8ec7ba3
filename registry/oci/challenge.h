#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::registry {

/// One way to log in that a server offers (RFC 7235).
struct Challenge {
  std::string scheme;                             ///< in lower case: "bearer", "basic"
  std::map<std::string, std::string> parameters;  ///< names in lower case
};

/// The value of a WWW-Authenticate header, which may hold several. What cannot be understood is left out.
std::vector<Challenge> parse_challenges(std::string_view header);

}  // namespace dsec::registry
