#include "registry/loader/caller.h"

#include <algorithm>
#include <filesystem>

namespace dsec::registry {
namespace {

const std::vector<std::string> kPaths = {"DSEC_CONFIG",    "REGISTRY_AUTH_FILE", "DOCKER_CONFIG",
                                         "SSL_CERT_FILE",  "SSL_CERT_DIR",       "AWS_SHARED_CREDENTIALS_FILE",
                                         "AWS_CONFIG_FILE"};
const std::vector<std::string> kOthers = {"HOME",
                                          "XDG_CONFIG_HOME",
                                          "XDG_RUNTIME_DIR",
                                          "PATH",  // of helpers that know logins
                                          "AWS_PROFILE",
                                          "AWS_DEFAULT_PROFILE",
                                          "AWS_ENDPOINT_URL",
                                          "AWS_ENDPOINT_URL_S3",
                                          "AWS_REGION",
                                          "AWS_DEFAULT_REGION",
                                          "AWS_ACCESS_KEY_ID",
                                          "AWS_SECRET_ACCESS_KEY",
                                          "AWS_SESSION_TOKEN"};

}  // namespace

const std::vector<std::string>& caller_variables() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names = kPaths;
    names.insert(names.end(), kOthers.begin(), kOthers.end());
    return names;
  }();
  return all;
}

Variables variables_of_caller() {
  Variables variables;
  for (const std::string& name : caller_variables()) {
    std::string value = variable(name.c_str());
    if (value.empty()) continue;
    if (std::find(kPaths.begin(), kPaths.end(), name) != kPaths.end())
      value = std::filesystem::absolute(value).lexically_normal().native();
    variables.emplace(name, std::move(value));
  }
  return variables;
}

}  // namespace dsec::registry
