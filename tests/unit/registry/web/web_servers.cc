#include "tests/unit/registry/web/web_servers.h"

#include <stdlib.h>

#include <algorithm>
#include <array>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::registry::test {
namespace fs = std::filesystem;
using dsec::test::answer;
using dsec::test::Reply;
using dsec::test::Seen;
namespace {

std::string header(const Seen& seen, const std::string& name) {
  const auto found = seen.headers.find(name);
  return found == seen.headers.end() ? "" : found->second;
}

std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
    i += 2;
  }
  return out;
}

std::string path_of(const Seen& seen) { return seen.target.substr(0, seen.target.find('?')); }

std::map<std::string, std::string> query_of(const Seen& seen) {
  std::map<std::string, std::string> query;
  const std::size_t mark = seen.target.find('?');
  if (mark == std::string::npos) return query;
  for (std::size_t at = mark + 1; at < seen.target.size();) {
    const std::size_t end = std::min(seen.target.find('&', at), seen.target.size());
    const std::string one = seen.target.substr(at, end - at);
    query[one.substr(0, one.find('='))] = unescaped(one.substr(one.find('=') + 1));
    at = end + 1;
  }
  return query;
}

/// The whole or the part that is asked for, under this ETag.
Reply give(const Seen& seen, const std::string& content, const std::string& etag, const std::string& modified = "") {
  const std::string range = header(seen, "range"), condition = header(seen, "if-range");
  Reply reply;
  std::size_t body = content.size();
  if (!range.empty() && (condition.empty() || condition == etag)) {
    const std::size_t first = std::stoul(range.substr(6)), dash = range.find('-');
    const std::size_t last = dash + 1 == range.size() ? content.size() - 1 : std::stoul(range.substr(dash + 1));
    body = last + 1 - first;
    reply = answer("206 Partial Content",
                   {"ETag: " + etag, "Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(last) +
                                         "/" + std::to_string(content.size())},
                   content.substr(first, body));
  } else {
    std::vector<std::string> headers = {"ETag: " + etag};
    if (!modified.empty()) headers.push_back("Last-Modified: " + modified);
    reply = answer("200 OK", headers, content);
  }
  if (seen.method == "HEAD") reply.bytes.resize(reply.bytes.size() - body);
  return reply;
}

std::string raw(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

// RFC 2104.
std::string hmac(std::string key, const std::string& text) {
  key.resize(64);
  std::string inner = key, outer = key;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  return raw(Digest::of(outer + raw(Digest::of(inner + text).hex())).hex());
}

std::string hex(const std::string& bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : bytes) out += {kHex[byte >> 4], kHex[byte & 15]};
  return out;
}

std::string between(const std::string& text, const std::string& begin, char end) {
  const std::size_t at = text.find(begin);
  return at == std::string::npos ? "" : text.substr(at + begin.size(), text.find(end, at) - at - begin.size());
}

// The signature that the request should have, by what S3's reference says and what came.
std::string expected_signature(const Seen& seen, const std::string& scope, const std::string& secret) {
  std::string headers, signed_headers = between(header(seen, "authorization"), "SignedHeaders=", ',');
  for (std::size_t at = 0; at < signed_headers.size();) {
    const std::size_t end = std::min(signed_headers.find(';', at), signed_headers.size());
    const std::string name = signed_headers.substr(at, end - at);
    headers += name + ":" + header(seen, name) + "\n";
    at = end + 1;
  }
  std::vector<std::string> parameters;
  const std::size_t mark = seen.target.find('?');
  for (std::size_t at = mark; at != std::string::npos && at < seen.target.size();) {
    const std::size_t end = std::min(seen.target.find('&', at + 1), seen.target.size());
    parameters.push_back(seen.target.substr(at + 1, end - at - 1));
    at = end == seen.target.size() ? std::string::npos : end;
  }
  std::sort(parameters.begin(), parameters.end());
  std::string query;
  for (const std::string& parameter : parameters) query += (query.empty() ? "" : "&") + parameter;
  const std::string canonical = seen.method + "\n" + path_of(seen) + "\n" + query + "\n" + headers + "\n" +
                                signed_headers + "\n" + header(seen, "x-amz-content-sha256");
  const std::string text =
      "AWS4-HMAC-SHA256\n" + header(seen, "x-amz-date") + "\n" + scope + "\n" + Digest::of(canonical).hex();
  std::string key = "AWS4" + secret;
  for (std::size_t at = 0; at < scope.size();) {
    const std::size_t end = std::min(scope.find('/', at), scope.size());
    key = hmac(key, scope.substr(at, end - at));
    at = end + 1;
  }
  return hex(hmac(key, text));
}

std::string etag_of(const std::string& content) { return "\"" + Digest::of(content).brief() + "\""; }

Reply refuse(const std::string& status, const std::string& code, const Seen& seen) {
  const std::string body = "<?xml version=\"1.0\"?>\n<Error><Code>" + code + "</Code><Message>told " + code +
                           "</Message><AWSAccessKeyId>id</AWSAccessKeyId></Error>";
  return answer(status, {"Content-Type: application/xml"}, seen.method == "HEAD" ? "" : body);
}

}  // namespace

Reply WebFolder::operator()(const Seen& seen) const {
  const std::string path = unescaped(path_of(seen));
  if ((seen.method != "GET" && seen.method != "HEAD") || !path.starts_with("/layers/")) return answer("404 Not Found");
  const fs::path file = folder_ / path.substr(8);
  if (!fs::is_regular_file(file)) return answer("404 Not Found");
  return give(seen, read_file(file), etag_of(read_file(file)));
}

std::string MemoryBucket::fault(const Seen& seen) const {
  const std::string authorization = header(seen, "authorization");
  if (authorization.empty()) return state_->anonymous ? "" : "AccessDenied";
  const std::string credential = between(authorization, "Credential=", ',');
  if (credential.substr(0, credential.find('/')) != state_->key_id) return "InvalidAccessKeyId";
  if (header(seen, "x-amz-security-token") != state_->session_token) return "ExpiredToken";
  const std::string signature = authorization.substr(authorization.find("Signature=") + 10);
  const std::string scope = credential.substr(credential.find('/') + 1);
  for (const char* name : {"host", "x-amz-content-sha256", "x-amz-date"})
    if (between(authorization, "SignedHeaders=", ',').find(name) == std::string::npos) return "HeadersNotSigned";
  if (!scope.ends_with("/s3/aws4_request") || signature != expected_signature(seen, scope, state_->secret))
    return "SignatureDoesNotMatch";
  return "";
}

Reply MemoryBucket::operator()(const Seen& seen) const {
  if (state_->instead)
    if (auto other = state_->instead(seen)) return *other;
  if (const std::string code = fault(seen); !code.empty())
    return refuse(code == "ExpiredToken" ? "400 Bad Request" : "403 Forbidden", code, seen);
  if (const std::string told = header(seen, "x-amz-content-sha256"); told != Digest::of(seen.body).hex())
    return refuse("400 Bad Request", "XAmzContentSHA256Mismatch", seen);
  const std::string path = unescaped(path_of(seen)), top = "/" + name_ + "/";
  if (!path.starts_with(top)) return refuse("404 Not Found", "NoSuchBucket", seen);
  const std::string key = path.substr(top.size());
  if (key.empty()) return list(seen);
  if (seen.method == "PUT") return put(seen, key);
  if (seen.method == "POST") return post(seen, key);
  if (seen.method == "DELETE") {
    if (auto query = query_of(seen); query.count("uploadId"))
      state_->uploads.erase(query["uploadId"]);
    else
      state_->objects.erase(key);
    return answer("204 No Content");
  }
  const auto found = state_->objects.find(key);
  if (found == state_->objects.end()) return refuse("404 Not Found", "NoSuchKey", seen);
  return give(seen, found->second, etag_of(found->second), state_->modified);
}

Reply MemoryBucket::put(const Seen& seen, const std::string& key) const {
  auto query = query_of(seen);
  if (query.count("uploadId")) {
    const auto upload = state_->uploads.find(query["uploadId"]);
    if (upload == state_->uploads.end()) return refuse("404 Not Found", "NoSuchUpload", seen);
    upload->second[std::stoi(query["partNumber"])] = seen.body;
    return answer("200 OK", {"ETag: " + etag_of(seen.body)});
  }
  if (!header(seen, "if-none-match").empty()) {
    if (!state_->knows_conditions) return refuse("501 Not Implemented", "NotImplemented", seen);
    if (state_->objects.count(key)) return refuse("412 Precondition Failed", "PreconditionFailed", seen);
  }
  state_->objects[key] = seen.body;
  return answer("200 OK", {"ETag: " + etag_of(seen.body)});
}

Reply MemoryBucket::post(const Seen& seen, const std::string& key) const {
  auto query = query_of(seen);
  if (query.count("uploads")) {
    const std::string id = "u+/=" + std::to_string(state_->uploads.size());
    state_->uploads[id];
    return answer("200 OK", {},
                  "<InitiateMultipartUploadResult><UploadId>" + id + "</UploadId></InitiateMultipartUploadResult>");
  }
  const auto upload = state_->uploads.find(query["uploadId"]);
  if (upload == state_->uploads.end()) return refuse("404 Not Found", "NoSuchUpload", seen);
  std::string whole;
  for (const auto& [number, part] : upload->second) {
    const std::string one = "<PartNumber>" + std::to_string(number) + "</PartNumber><ETag>&quot;" +
                            Digest::of(part).brief() + "&quot;</ETag>";
    if (seen.body.find(one) == std::string::npos) return refuse("400 Bad Request", "InvalidPart", seen);
    whole += part;
  }
  state_->objects[key] = whole;
  state_->uploads.erase(upload);
  return answer("200 OK", {}, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>");
}

Reply MemoryBucket::list(const Seen& seen) const {
  auto query = query_of(seen);
  const std::size_t most =
      query.count("max-keys") ? std::min<std::size_t>(std::stoul(query["max-keys"]), state_->page) : state_->page;
  std::string body = "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  std::size_t shown = 0;
  for (const auto& [key, content] : state_->objects) {
    if (!key.starts_with(query["prefix"]) || key <= query["continuation-token"]) continue;
    if (shown++ == most) {
      body += "<IsTruncated>true</IsTruncated>";
      break;
    }
    body += "<Contents><Key>" + key + "</Key></Contents>";
    query["last"] = key;
  }
  if (shown > most) body += "<NextContinuationToken>" + query["last"] + "</NextContinuationToken>";
  return answer("200 OK", {}, body + "</ListBucketResult>");
}

Variables::Variables(std::map<std::string, std::string> wanted) {
  // Nothing of the machine that the tests run on may count.
  for (const char* name :
       {"AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"})
    wanted.emplace(name, "");
  wanted.emplace("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file");
  wanted.emplace("AWS_CONFIG_FILE", "/no/such/file");
  for (const auto& [name, value] : wanted) {
    const char* old = ::getenv(name.c_str());
    before_[name] = old ? std::optional<std::string>(old) : std::nullopt;
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

Variables::~Variables() {
  for (const auto& [name, value] : before_) {
    if (value)
      ::setenv(name.c_str(), value->c_str(), 1);
    else
      ::unsetenv(name.c_str());
  }
}

std::string told(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    std::string text = error.message();
    for (const std::string& hint : error.hints()) text += " | " + hint;
    return text;
  }
  return "nothing";
}

}  // namespace dsec::registry::test
