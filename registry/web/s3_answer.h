#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/http/client.h"
#include "registry/web/s3_environment.h"

namespace dsec::registry {

/// What stands between <element> and </element>, each time, with the five entities and numbers undone; elements within
/// it stay as they are. Good enough for S3's answers, which have neither attributes there nor comments.
std::vector<std::string> xml_texts(std::string_view xml, const std::string& element);
std::string first_xml_text(std::string_view xml, const std::string& element);
std::string escaped_xml(std::string_view text);

/// A page of a listing.
struct S3Page {
  std::vector<std::string> keys;
  std::string next;  ///< where the rest begins; empty: there is none
  /// Throws Error for what is no listing.
  static S3Page parse(std::string_view xml);
};

/// The code of a refusal: "NoSuchKey"; empty when the answer says none, as those to HEAD.
std::string s3_code(const http::Answer& answer);
/// http::answer_error with what the server says and what to try; Usage when the bucket does not exist.
Error s3_error(const http::Request& request, const http::Answer& answer, const std::string& bucket,
               const S3Target& target, const S3Environment& environment);

}  // namespace dsec::registry
