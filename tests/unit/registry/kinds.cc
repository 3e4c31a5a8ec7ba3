#include "tests/unit/registry/kinds.h"

#include <nlohmann/json.hpp>

#include "core/base/json.h"

namespace dsec::registry::test {
namespace {

using dsec::test::answer;
using dsec::test::Reply;
using dsec::test::Seen;
using Contents = MemoryRegistry::State::Contents;

std::string parameter(const Seen& seen, const std::string& name) {
  const std::size_t at = seen.target.find(name + "=");
  if (at == std::string::npos) return "";
  std::string value = seen.target.substr(at + name.size() + 1);
  value = value.substr(0, value.find('&'));
  for (const auto& [code, plain] : {std::pair("%3A", ":"), std::pair("%2F", "/")})
    for (std::size_t found; (found = value.find(code)) != std::string::npos;) value.replace(found, 3, plain);
  return value;
}

Reply give(const Seen& seen, const Contents& contents, const std::string& name) {
  const auto found = contents.find(name);
  if (found == contents.end()) return answer("404 Not Found");
  if (const auto range = seen.headers.find("range"); range != seen.headers.end()) {
    const std::size_t first = std::stoul(range->second.substr(6)), whole = found->second.size();
    const std::string last = range->second.substr(range->second.find('-') + 1);
    const std::string part =
        found->second.substr(first, last.empty() ? std::string::npos : std::stoul(last) + 1 - first);
    return answer("206 Partial Content",
                  {"Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(first + part.size() - 1) +
                   "/" + std::to_string(whole)},
                  part);
  }
  Reply reply = answer("200 OK", {"Content-Type: application/vnd.oci.image.manifest.v1+json"}, found->second);
  if (seen.method == "HEAD") reply.bytes.resize(reply.bytes.size() - found->second.size());
  return reply;
}

}  // namespace

Reply MemoryRegistry::operator()(const Seen& seen) const {
  if (state_->before) state_->before(seen);
  const std::string path = seen.target.substr(0, seen.target.find('?'));
  if (path == "/v2/") return answer("200 OK");
  if (path == "/v2/_catalog") {
    if (!state_->catalogue) return answer("404 Not Found");
    Json names = Json::array();
    for (const auto& [name, tags] : state_->manifests) names.push_back(name);
    return answer("200 OK", {}, Json{{"repositories", names}}.dump());
  }
  for (const std::string_view kind : {"/blobs/uploads/", "/blobs/", "/manifests/", "/tags/list"})
    if (const std::size_t at = path.find(kind); at != std::string::npos) {
      const std::string repository = path.substr(4, at - 4), rest = path.substr(at + kind.size());
      if (kind == "/blobs/uploads/") return upload(seen, repository);
      if (kind == "/blobs/") return give(seen, state_->blobs[repository], rest);
      if (kind == "/tags/list") return tags(repository);
      if (seen.method == "DELETE") return remove(repository, rest);
      if (seen.method != "PUT") return give(seen, state_->manifests[repository], rest);
      state_->manifests[repository][rest] = seen.body;
      state_->manifests[repository][Digest::of(seen.body).str()] = seen.body;
      const Json manifest = parse_json(seen.body, "a manifest");
      if (!state_->referrers || !manifest.contains("subject")) return answer("201 Created");
      return answer("201 Created", {"OCI-Subject: " + json_string(manifest["subject"], "digest")});
    }
  return answer("404 Not Found");
}

Reply MemoryRegistry::upload(const Seen& seen, const std::string& repository) const {
  Contents& blobs = state_->blobs[repository];
  if (seen.method == "PUT") {
    const std::string digest = parameter(seen, "digest");
    if (Digest::of(seen.body).str() != digest)
      return answer("400 Bad Request", {}, R"({"errors":[{"code":"DIGEST_INVALID"}]})");
    blobs[digest] = seen.body;
    return answer("201 Created");
  }
  const std::string mount = parameter(seen, "mount");
  const Contents& from = state_->blobs[parameter(seen, "from")];
  if (const auto found = from.find(mount); found != from.end()) {
    blobs[mount] = found->second;
    return answer("201 Created");
  }
  return answer("202 Accepted", {"Location: /v2/" + repository + "/blobs/uploads/1"});
}

// With all tags that name it.
Reply MemoryRegistry::remove(const std::string& repository, const std::string& name) const {
  if (!state_->deletes)
    return answer("405 Method Not Allowed", {}, R"({"errors":[{"code":"UNSUPPORTED","message":"no"}]})");
  Contents& manifests = state_->manifests[repository];
  const auto found = manifests.find(name);
  if (found == manifests.end()) return answer("404 Not Found");
  const std::string bytes = found->second;
  std::erase_if(manifests, [&](const auto& entry) { return entry.second == bytes; });
  return answer("202 Accepted");
}

Reply MemoryRegistry::tags(const std::string& repository) const {
  Json names = Json::array();
  for (const auto& [name, bytes] : state_->manifests[repository])
    if (!name.starts_with("sha256:")) names.push_back(name);
  return names.empty() ? answer("404 Not Found") : answer("200 OK", {}, Json{{"tags", names}}.dump());
}

Kinds::Kinds(const std::string& kind) {
  address = another(kind, "team");
  readable = kind == "https" ? RegistryAddress::parse(web.url("/layers")) : address;
}

RegistryAddress Kinds::another(const std::string& kind, const std::string& place) const {
  if (kind == "oci") return RegistryAddress::parse("oci://" + oci.authority() + "/" + place + "/layers");
  if (kind == "s3") return RegistryAddress::parse("s3://layers/" + place);
  return RegistryAddress::parse(from.registry_url(place == "team" ? "registry" : place));
}

}  // namespace dsec::registry::test
