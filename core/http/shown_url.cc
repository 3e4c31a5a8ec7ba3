#include "core/http/shown_url.h"

#include <algorithm>

namespace dsec::http {

std::string shown_url(std::string_view text) {
  std::string shown(text);
  if (const std::size_t scheme = shown.find("://"); scheme != std::string::npos) {
    const std::size_t begin = scheme + 3, end = std::min(shown.find('/', begin), shown.size());
    const std::size_t at = shown.substr(0, end).rfind('@');
    if (at != std::string::npos && at >= begin) shown.replace(begin, at - begin, "…");
  }
  const std::size_t query = shown.find('?');
  return query == std::string::npos ? shown : shown.substr(0, query) + "?…";
}

}  // namespace dsec::http
