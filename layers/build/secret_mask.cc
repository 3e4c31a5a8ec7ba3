#include "layers/build/secret_mask.h"

#include <algorithm>

namespace dsec::layers {
namespace {

constexpr std::size_t kShortest = 6;
constexpr std::string_view kShown = "********";

}  // namespace

SecretMask::SecretMask(std::span<const std::string> secrets) {
  for (std::string_view secret : secrets)
    while (!secret.empty()) {
      std::string_view line = secret.substr(0, secret.find('\n'));
      secret.remove_prefix(std::min(line.size() + 1, secret.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.size() >= kShortest) hidden_.emplace_back(line);
    }
  std::sort(hidden_.begin(), hidden_.end(), [](const std::string& left, const std::string& right) {
    return left.size() != right.size() ? left.size() > right.size() : left < right;
  });
  hidden_.erase(std::unique(hidden_.begin(), hidden_.end()), hidden_.end());
}

std::string SecretMask::take(std::string& text, std::size_t size) const {
  std::string out;
  std::size_t at = 0;
  while (at < std::min(size, text.size())) {
    const std::string_view rest = std::string_view(text).substr(at);
    const auto secret = std::find_if(hidden_.begin(), hidden_.end(),
                                     [&](const std::string& hidden) { return rest.starts_with(hidden); });
    if (secret == hidden_.end()) {
      out += text[at++];
    } else {
      out += kShown;
      at += secret->size();
    }
  }
  text.erase(0, at);
  return out;
}

}  // namespace dsec::layers
