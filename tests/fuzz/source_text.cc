// All text that comes from outside with git repositories, folders and suites: source names, ignore and attribute files,
// file contents that a checkout converts, netrc, dpkg's status. The first byte chooses; only Error is forgiven.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "layers/dir/debootstrap_source.h"
#include "layers/dir/dir_source.h"
#include "layers/dir/ignore_rules.h"
#include "layers/git/attributes.h"
#include "layers/git/checkout_filter.h"
#include "layers/git/credentials.h"
#include "layers/git/git_source.h"
#include "layers/git/remote.h"

namespace {

using namespace dsec;
using namespace dsec::layers;

void require(bool holds) {
  if (!holds) std::abort();
}

void convert(std::string_view text) {
  std::string out;
  if (to_crlf(text, LineEnds::Crlf, out)) require(out.size() > text.size());
  if (to_crlf(text, LineEnds::AutoCrlf, out)) require(text.find("\r") == std::string_view::npos);
  if (expand_ident(text, std::string(40, 'a'), out)) require(out.find("$Id: ") != std::string::npos);
  encode(text, "UTF-16LE-BOM", out);
}

void parse(unsigned char which, std::string_view text) {
  const std::string_view first = text.substr(0, text.find('\0'));
  const std::string_view rest = text.substr(std::min(first.size() + 1, text.size()));
  switch (which % 8) {
    case 0:
      IgnoreRules::parse(first).decide(rest, true);
      break;
    case 1:
      wildcard_match(first, rest);
      break;
    case 2: {
      GitAttributes attributes;
      attributes.add_file("", first);
      attributes.look_up(rest);
      break;
    }
    case 3:
      convert(text);
      break;
    case 4:
      find_in_netrc(first, rest, "");
      break;
    case 5: {
      require(without_credentials("https://user:secret@" + std::string(text)).find("secret@") == std::string::npos ||
              text.find("secret@") != std::string_view::npos);
      if (is_remote(text)) GitRequest::parse(text);
      break;
    }
    case 6:
      DebootstrapRequest::parse(text);
      break;
    case 7:
      installed_packages(text);
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    parse(data[0], std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const Error&) {
  }
  return 0;
}
