#include "core/model/hostname.h"

#include <algorithm>
#include <string>

#include "core/base/error.h"

namespace dsec {
namespace {

bool valid_label(std::string_view label) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  return !label.empty() && label.size() <= 63 && plain(label.front()) && plain(label.back()) &&
         std::all_of(label.begin(), label.end(), [&](char c) { return plain(c) || c == '-'; });
}

}  // namespace

void check_hostname(std::string_view name) {
  bool valid = name.size() <= 64;
  for (std::size_t begin = 0; valid && begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    valid = valid_label(name.substr(begin, end - begin));
    begin = end + 1;
  }
  if (!valid)
    throw usage_error(quote(std::string(name)) + " is no valid host name")
        .hint("use letters, digits and '-', at most 63 between dots and 64 in all, a letter or digit at both ends");
}

}  // namespace dsec
