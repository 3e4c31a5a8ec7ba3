#include "registry/web/s3_environment.h"

#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/variables.h"
#include "core/http/fields.h"

namespace dsec::registry {
namespace fs = std::filesystem;
using http::trimmed;
namespace {

constexpr std::uint64_t kLargestFile = 4 << 20;
constexpr const char* kDefaultRegion = "us-east-1";
// What a profile may have instead of keys.
constexpr const char* const kOtherMeans[] = {"sso_session",        "sso_start_url",     "role_arn",
                                             "credential_process", "credential_source", "login_session"};

AwsSections read_sections(const fs::path& file) {
  std::error_code missing;
  if (file.empty() || !fs::exists(file, missing)) return {};
  return attempt("cannot read what AWS tools keep", [&] { return parse_aws_file(read_file(file, kLargestFile)); });
}

using Section = std::map<std::string, std::string>;

std::string setting(const Section& section, const std::string& name) {
  const auto found = section.find(name);
  return found == section.end() ? "" : found->second;
}

std::string first_of(std::initializer_list<std::string> candidates) {
  for (const std::string& candidate : candidates)
    if (!candidate.empty()) return candidate;
  return "";
}

Error unknown_profile(const std::string& name, const AwsSections& credentials, const AwsSections& config) {
  Error error = usage_error("AWS_PROFILE names no profile: " + quote(name));
  std::vector<std::string> known;
  for (const AwsSections* sections : {&credentials, &config})
    for (const auto& [profile, settings] : *sections) known.push_back(profile);
  for (const std::string& near : nearest_names(name, known)) error.hint(near);
  return error;
}

// Keys that have to be fetched from somewhere first are for the tools that know how.
void refuse_other_means(const std::string& profile, const Section& settings) {
  for (const char* means : kOtherMeans)
    if (settings.contains(means))
      throw usage_error("profile " + quote(profile) + " has no keys, but gets them by " + quote(means) +
                        ", which dsec does not do")
          .hint("eval \"$(aws configure export-credentials --profile " + profile + " --format env)\"");
}

}  // namespace

AwsSections parse_aws_file(std::string_view text) {
  AwsSections sections;
  std::string section, above;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string content = trimmed(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    if (content.front() == '[') {
      section = trimmed(std::string_view(content).substr(1, content.find(']') - 1));
      if (section.starts_with("profile ")) section = trimmed(std::string_view(section).substr(8));
      sections[section];
      above.clear();
      continue;
    }
    const std::size_t equals = content.find('=');
    if (equals == std::string::npos || section.empty()) continue;
    const bool indented = line.front() == ' ' || line.front() == '\t';
    const std::string name = trimmed(std::string_view(content).substr(0, equals));
    std::string value = trimmed(std::string_view(content).substr(equals + 1));
    for (const char* comment : {" #", " ;"}) value = trimmed(std::string_view(value).substr(0, value.find(comment)));
    if (!indented) above = value.empty() ? name + "." : "";
    sections[section][indented ? above + name : name] = value;
  }
  return sections;
}

S3Environment::S3Environment(const std::function<std::string(const char*)>& variable) {
  const std::string home = variable("HOME");
  const auto file = [&](const char* name, const char* usual) {
    const std::string named = variable(name);
    return !named.empty() ? fs::path(named) : home.empty() ? fs::path() : fs::path(home) / ".aws" / usual;
  };
  const fs::path credentials_file = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  const fs::path config_file = file("AWS_CONFIG_FILE", "config");
  const AwsSections credentials = read_sections(credentials_file), config = read_sections(config_file);
  const std::string profile = first_of({variable("AWS_PROFILE"), variable("AWS_DEFAULT_PROFILE"), "default"});
  if (profile != "default" && !credentials.contains(profile) && !config.contains(profile))
    throw unknown_profile(profile, credentials, config);
  const auto section_of = [&](const AwsSections& sections) {
    const auto found = sections.find(profile);
    return found == sections.end() ? Section() : found->second;
  };
  const Section keys = section_of(credentials), settings = section_of(config);

  endpoint = first_of({variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"),
                       setting(settings, "s3.endpoint_url"), setting(settings, "endpoint_url")});
  region = first_of({variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"), setting(settings, "region")});
  if (const std::string style = setting(settings, "s3.addressing_style"); style == "path" || style == "virtual")
    path_style = style == "path";

  origin = "AWS_ACCESS_KEY_ID, " + quote(credentials_file.native()) + " and " + quote(config_file.native());
  const auto take = [&](const std::string& id, const std::string& key, const std::string& token,
                        const std::string& from) {
    if (!key_id.empty() || id.empty() || key.empty()) return;
    key_id = id;
    secret = key;
    session_token = token;
    origin = from;
  };
  take(variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"), variable("AWS_SESSION_TOKEN"),
       "AWS_ACCESS_KEY_ID of the environment");
  for (const auto& [section, from] : {std::pair(&keys, &credentials_file), std::pair(&settings, &config_file)})
    take(setting(*section, "aws_access_key_id"), setting(*section, "aws_secret_access_key"),
         setting(*section, "aws_session_token"), "profile " + quote(profile) + " of " + quote(from->native()));
  if (!key_id.empty()) return;
  refuse_other_means(profile, keys);
  refuse_other_means(profile, settings);
}

S3Environment S3Environment::of_this_process() { return S3Environment(variable); }

S3Target S3Target::of(const RegistryAddress& address, const S3Environment& environment) {
  S3Target target;
  target.region = first_of({address.s3.region, environment.region, kDefaultRegion});
  std::string endpoint = first_of({address.s3.endpoint, environment.endpoint});
  const bool is_amazon = endpoint.empty();
  if (is_amazon)
    endpoint = "https://s3." + target.region + ".amazonaws.com" + (target.region.starts_with("cn-") ? ".cn" : "");
  target.root = attempt("the endpoint of " + address.shown(), [&] { return http::Url::parse(endpoint); });
  while (target.root.target.ends_with('/')) target.root.target.pop_back();
  target.authority = target.root.authority();
  const bool by_default = !is_amazon || address.bucket.find('.') != std::string::npos;
  if (address.s3.path_style.value_or(environment.path_style.value_or(by_default)))
    target.root.target += "/" + address.bucket;
  else
    target.root.host = address.bucket + "." + target.root.host;
  target.root.target += "/";
  return target;
}

}  // namespace dsec::registry
