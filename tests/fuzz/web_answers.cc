// What web servers and buckets answer, and what the AWS tools keep: catalogues, listings, refusals, profiles, and the
// record of gc. The first byte chooses the parser; the only exception that is forgiven is Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "registry/collect/condemned.h"
#include "registry/layout/catalogue.h"
#include "registry/layout/layout.h"
#include "registry/web/s3_answer.h"
#include "registry/web/s3_environment.h"

namespace {

using namespace dsec;
using namespace dsec::registry;

void require(bool holds) {
  if (!holds) std::abort();
}

void parse(unsigned char which, const std::string& text) {
  switch (which % 6) {
    case 0: {
      // No name leads out of its place, and what is taken comes back the same.
      const std::vector<std::string> names = parse_catalogue(text);
      for (const std::string& name : names) require(name.find("..") == std::string::npos && !name.starts_with('/'));
      require(parse_catalogue(catalogue_text(names)) == names);
      break;
    }
    case 1:
      for (const std::string& key : S3Page::parse(text).keys)
        if (const auto tag = tag_of_name(key)) require(tag_name(tag->first, tag->second) == key);
      break;
    case 2:
      require(first_xml_text("<a>" + escaped_xml(text) + "</a>", "a") == text);
      xml_texts(text, "Code");
      break;
    case 3:
      for (const auto& [section, settings] : parse_aws_file(text))
        for (const auto& [name, value] : settings) require(value.find('\n') == std::string::npos);
      break;
    case 4:
      check_marker_text(text);
      break;
    default: {
      const CondemnedNote note = CondemnedNote::parse(text);
      require(CondemnedNote::parse(note.text()) == note);
    }
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
