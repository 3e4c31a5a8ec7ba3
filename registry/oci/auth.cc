#include "registry/oci/auth.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/json_bytes.h"
#include "registry/oci/answer.h"

namespace dsec::registry {
namespace {

using std::chrono::seconds;

// What a token that says nothing of its end is good for (distribution's token specification).
constexpr seconds kUsualLifetime{60};
constexpr seconds kLongestLifetime{24 * 3600};

std::string key_of(const AccessRequest& access) {
  std::string key;
  for (const std::string& scope : access.scopes) key += scope + " ";
  return key;
}

std::string parameter(const Challenge& challenge, const std::string& name) {
  const auto found = challenge.parameters.find(name);
  return found == challenge.parameters.end() ? "" : found->second;
}

std::string form(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string text;
  for (const auto& [name, value] : fields)
    text += (text.empty() ? "" : "&") + http::percent_encode(name) + "=" + http::percent_encode(value);
  return text;
}

}  // namespace

std::string basic_authorization(const Credential& login) {
  return "Basic " + base64(login.user + ":" + login.password);
}

Token Token::parse(std::string_view text) {
  return attempt("the answer of the authorization server is no token", [&] {
    const Json json = parse_json(text, "answer");
    if (!json.is_object()) throw failure("it is no JSON object");
    Token token;
    token.text = json_string_or(json, "token", "");
    if (token.text.empty()) token.text = json_string_or(json, "access_token", "");
    if (token.text.empty()) throw failure("it has neither 'token' nor 'access_token'");
    for (const char c : token.text)
      if (c <= ' ' || c == 0x7f) throw failure("its token has characters that no header can hold");
    const auto given = json.find("expires_in");
    token.lifetime = kUsualLifetime;
    if (given != json.end() && given->is_number_integer() && given->get<std::int64_t>() > 0)
      token.lifetime = std::min(seconds(given->get<std::int64_t>()), kLongestLifetime);
    return token;
  });
}

std::string Authenticator::login_hint(const std::string& host) const {
  std::string files;
  for (const auto& file : credentials_.files()) files += (files.empty() ? "" : ", ") + file.native();
  return "docker login " + host + ", or podman login " + host + "; logins are looked for in " + files;
}

Error Authenticator::login_error(const AccessRequest& access, const std::string& why) const {
  return failure("registry " + access.host + " " + why).hint(login_hint(access.host));
}

std::string Authenticator::header(const AccessRequest& access) {
  const std::lock_guard guard(mutex_);
  const auto asked = asked_.find(access.host);
  if (asked == asked_.end()) return "";
  const auto kept = headers_.find({access.host, key_of(access)});
  if (kept != headers_.end() && Clock::now() < kept->second.until) return kept->second.header;
  return fetch(access, asked->second);
}

std::string Authenticator::fetch(const AccessRequest& access, const Challenge& challenge) {
  const std::optional<Credential> login = credentials_.find(access.host, access.repository);
  const auto keep = [&](const std::string& header, seconds lifetime) {
    // Some time before its end, so that a request that takes a while does not meet it.
    const seconds margin = std::min<seconds>(seconds(15), lifetime / 4);
    headers_[{access.host, key_of(access)}] = {header, Clock::now() + lifetime - margin};
    return header;
  };
  if (challenge.scheme == "basic") {
    if (!login || login->user.empty()) throw login_error(access, "wants a user name and a password");
    return keep(basic_authorization(*login), kLongestLifetime);
  }
  return attempt("cannot get a token for registry " + access.host, [&] {
    http::Request request;
    request.url = http::Url::parse(parameter(challenge, "realm"));
    std::vector<std::pair<std::string, std::string>> fields;
    if (const std::string service = parameter(challenge, "service"); !service.empty())
      fields.emplace_back("service", service);
    if (login && !login->identity_token.empty()) {
      std::string scopes;
      for (const std::string& scope : access.scopes) scopes += (scopes.empty() ? "" : " ") + scope;
      fields.insert(fields.end(), {{"scope", scopes},
                                   {"grant_type", "refresh_token"},
                                   {"client_id", "dsec"},
                                   {"refresh_token", login->identity_token}});
      request.method = "POST";
      request.headers = {{"Content-Type", "application/x-www-form-urlencoded"}};
      request.body.text = form(fields);
    } else {
      for (const std::string& scope : access.scopes) fields.emplace_back("scope", scope);
      if (login) {
        fields.emplace_back("account", login->user);
        request.authorization = basic_authorization(*login);
      }
      for (const auto& [name, value] : fields) request.url = request.url.with(name, value);
    }
    const http::Answer answer = client_.send(request);
    if (answer.status == 401 || answer.status == 403)
      throw login_error(access, login ? "does not accept the login of " + login->origin
                                      : "gives nobody a token who is not logged in");
    if (!answer.ok()) throw registry_error(request, answer);
    const Token token = Token::parse(answer.body);
    return keep("Bearer " + token.text, token.lifetime);
  });
}

void Authenticator::refused(const AccessRequest& access, const std::string& sent, const http::Answer& answer) {
  std::vector<Challenge> challenges;
  for (const auto& [name, value] : answer.headers)
    if (http::find_header({{name, ""}}, "WWW-Authenticate"))
      for (Challenge& challenge : parse_challenges(value)) challenges.push_back(std::move(challenge));
  const auto with = [&](const char* scheme) {
    return std::find_if(challenges.begin(), challenges.end(),
                        [&](const Challenge& challenge) { return challenge.scheme == scheme; });
  };
  auto chosen = with("bearer");
  if (chosen == challenges.end() || parameter(*chosen, "realm").empty()) chosen = with("basic");
  if (chosen == challenges.end())
    throw login_error(access, "wants a login and offers no way that dsec knows (Bearer or Basic)");
  const std::lock_guard guard(mutex_);
  if (chosen->scheme == "basic" && sent.starts_with("Basic ")) {
    const auto login = credentials_.find(access.host, access.repository);
    throw login_error(access, "does not accept the login of " + (login ? login->origin : "nobody"));
  }
  asked_[access.host] = *chosen;
  // Another thread may have a new one already.
  const auto kept = headers_.find({access.host, key_of(access)});
  if (kept != headers_.end() && kept->second.header == sent) headers_.erase(kept);
}

}  // namespace dsec::registry
