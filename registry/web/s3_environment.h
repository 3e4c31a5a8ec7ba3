#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/http/message.h"
#include "registry/registry_url.h"

namespace dsec::registry {

/// Sections of ~/.aws/config or ~/.aws/credentials; "profile x" is "x" there. An indented setting below "s3 =" has the
/// name "s3.setting". Lines that are none are left out.
using AwsSections = std::map<std::string, std::map<std::string, std::string>>;
AwsSections parse_aws_file(std::string_view text);

/// What the environment and the files of the AWS tools say to this process (man/dsec-registry.5.md). Read when it is
/// made. Throws Error (Usage) when AWS_PROFILE names no profile.
class S3Environment {
 public:
  /// `variable` gives a variable of the environment; empty when it is not set.
  explicit S3Environment(const std::function<std::string(const char*)>& variable);
  static S3Environment of_this_process();

  std::string endpoint;  ///< empty: Amazon's
  std::string region;    ///< empty: none is set
  std::optional<bool> path_style;
  std::string key_id, secret, session_token;  ///< empty: there are no keys
  std::string origin;                         ///< of the keys, or where they were looked for; for messages
};

/// A bucket as it is talked to.
struct S3Target {
  http::Url root;  ///< of the bucket; the target ends with '/'
  std::string region;
  /// What `hosts` of config.yaml calls it: without the bucket, "objects.example:9000".
  std::string authority;

  /// Throws Error (Usage) for an endpoint that is no URL.
  static S3Target of(const RegistryAddress& address, const S3Environment& environment);
};

}  // namespace dsec::registry
