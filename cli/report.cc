#include "cli/report.h"

#include <nlohmann/json.hpp>

namespace dsec::cli {
namespace {

std::string_view word(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Usage:
      return "usage";
    case ErrorKind::Failed:
      return "failed";
    case ErrorKind::Internal:
      return "internal";
  }
  return "internal";
}

}  // namespace

int exit_code(ErrorKind kind, bool status_passed_on) noexcept {
  if (status_passed_on) return kDsecFailed;
  return kind == ErrorKind::Usage ? kMisused : kFailed;
}

void report(const Error& error, Format format, std::ostream& err) {
  if (format == Format::Json) {
    Json chain = Json::array(), hints = Json::array();
    for (const auto& cause : error.chain()) chain.push_back(cause);
    for (const auto& action : error.hints()) hints.push_back(action);
    const Json object = {{"error", {{"kind", word(error.kind())}, {"chain", chain}, {"try", hints}}}};
    err << object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    return;
  }
  err << "error: " << error.chain().front() << '\n';
  for (const auto& cause : error.chain().subspan(1)) err << "  because: " << cause << '\n';
  for (const auto& action : error.hints()) err << "  try: " << action << '\n';
}

}  // namespace dsec::cli
