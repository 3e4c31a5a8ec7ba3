// What registries, authorization servers and credential helpers answer, and what people call images. The first byte
// chooses the parser; the only exception that is forgiven is Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "core/http/retry.h"
#include "core/http/url.h"
#include "registry/oci/answer.h"
#include "registry/oci/artifact.h"
#include "registry/oci/auth.h"
#include "registry/oci/challenge.h"
#include "registry/oci/credentials.h"
#include "registry/oci/reference.h"

namespace {

using namespace dsec;
using namespace dsec::registry;

void require(bool holds) {
  if (!holds) std::abort();
}

void parse(unsigned char which, const std::string& text) {
  switch (which % 9) {
    case 0:
      for (const Challenge& challenge : parse_challenges(text)) require(!challenge.scheme.empty());
      break;
    case 1: {
      const CredentialFile file = CredentialFile::parse(text, "input");
      if (const Credential* login = file.find("h.example", "a/b"))
        require(!login->user.empty() || !login->identity_token.empty());
      break;
    }
    case 2:
      parse_helper_answer(text, "input");
      break;
    case 3:
      require(!Token::parse(text).text.empty());
      break;
    case 4: {
      const ImageReference reference = ImageReference::parse(text);
      require(ImageReference::parse(reference.str()).str() == reference.str());
      require(reference.repository.find("..") == std::string::npos);
      break;
    }
    case 5:
      layer_of_artifact(text, "input");
      break;
    case 6:
      require(complaint_of(text).find('\n') == std::string::npos);
      break;
    case 7: {
      const http::Url url = http::Url::parse(text);
      require(http::Url::parse(url.str()).str() == url.str());
      url.resolve(text);
      break;
    }
    default:
      http::parse_retry_after(text, {});
      if (const auto layer = layer_of_shelf_tag(text)) require(shelf_tag(*layer) == text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    parse(data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const dsec::Error&) {
    // What a person is told.
  }
  return 0;
}
