#include "registry/oci/client.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/http/fields.h"
#include "registry/list_budget.h"
#include "registry/oci/answer.h"

namespace dsec::registry {

using http::number;

const char* const kImageManifestType = "application/vnd.oci.image.manifest.v1+json";
const char* const kManifestTypes =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

namespace {

constexpr std::uint64_t kChunk = 32 << 20;
constexpr std::uint64_t kLargestBlobInMemory = 16 << 20;
constexpr int kMostPages = 10'000;
// 401 twice, and a third time when a token ended in between.
constexpr int kMostLogins = 3;
constexpr int kMostUploads = 3;
// distribution writes the links to a repository's blobs in place, so that while somebody else pushes the same blob it
// may be read as empty; they are whole again after a moment.
constexpr int kMostManifestPuts = 5;
constexpr std::chrono::milliseconds kBlobSettles{100};

// distribution serves these when it is asked for nothing newer, and so do others for old images.
constexpr std::string_view kSchema1 = "application/vnd.docker.distribution.manifest.v1+";

/// Where docker.io answers.
std::string api_host(const std::string& host) { return host == "docker.io" ? "registry-1.docker.io" : host; }

std::string without_parameters(const std::string& type) {
  std::string out = type.substr(0, type.find(';'));
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

/// What trying again does not change, told apart from what broke on the way.
struct UploadRefused : Error {
  explicit UploadRefused(Error error) : Error(std::move(error)) {}
};

/// An upload that broke off and began again may be refused for what is left of its first half.
bool may_pass(const http::Answer& answer) {
  return answer.status != 401 && answer.status != 403 && answer.status != 405 && answer.status != 413 &&
         answer.body.find("DIGEST_INVALID") == std::string::npos;
}

/// A manifest was refused for what it names, not for what it is.
bool misses_a_blob(const http::Answer& answer) {
  return (answer.status == 400 || answer.status == 404) && answer.body.find("BLOB_UNKNOWN") != std::string::npos;
}

/// How many bytes an upload has, by "Range: 0-99".
std::optional<std::uint64_t> received(const http::Answer& answer) {
  const std::string* range = answer.header("Range");
  if (!range) return std::nullopt;
  std::string_view text = *range;
  if (text.starts_with("bytes=")) text.remove_prefix(6);
  if (!text.starts_with("0-")) return std::nullopt;
  const auto last = number(text.substr(2));
  // Some say "0-0" when there is nothing yet.
  return last ? std::optional(*last == 0 ? 0 : *last + 1) : std::nullopt;
}

http::Url location_of(const http::Request& request, const http::Answer& answer) {
  const std::string* location = answer.header("Location");
  if (!location) throw failure("the answer to " + request.method + " " + request.url.shown() + " has no Location");
  return answer.url.resolve(*location);
}

std::optional<Digest> digest_in(const http::Answer& answer, const char* header) {
  const std::string* told = answer.header(header);
  if (!told || !told->starts_with("sha256:") || !Digest::valid_hex(std::string_view(*told).substr(7)))
    return std::nullopt;
  return Digest::parse(*told);
}

/// "</v2/x/tags/list?last=a&n=100>; rel="next"".
std::optional<std::string> next_page(const http::Answer& answer) {
  const std::string* link = answer.header("Link");
  if (!link || link->find("rel=\"next\"") == std::string::npos) return std::nullopt;
  const std::size_t begin = link->find('<'), end = link->find('>');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  return link->substr(begin + 1, end - begin - 1);
}

}  // namespace

OciClient::OciClient(http::Client& client, Authenticator& authenticator, std::string host, Scheme scheme)
    : client_(client), authenticator_(authenticator), host_(std::move(host)), scheme_(scheme) {}

http::Url OciClient::url(const std::string& target) const {
  return http::Url::parse((scheme_ == Scheme::Https ? "https://" : "http://") + api_host(host_) + target);
}

AccessRequest OciClient::access(const std::string& repository, std::string_view actions) const {
  return {host_, repository, {"repository:" + repository + ":" + std::string(actions)}};
}

http::Answer OciClient::call(http::Request request, const AccessRequest& access, http::Download* download) {
  const bool own = request.url.same_origin(url("/"));
  for (int tries = 0;; ++tries) {
    // A registry may send an upload elsewhere, and that is no business of the one who logs in here.
    if (own) request.authorization = authenticator_.header(access);
    http::Answer answer = client_.send(request, download);
    if (answer.status != 401 || !own || !answer.url.same_origin(request.url)) return answer;
    if (tries == kMostLogins - 1) throw error_of(request, answer);
    authenticator_.refused(access, request.authorization, answer);
  }
}

// Many registries give anybody a token, and refuse what it is used for.
Error OciClient::error_of(const http::Request& request, const http::Answer& answer) const {
  Error error = registry_error(request, answer);
  if (answer.status == 401 || answer.status == 403) error.hint(authenticator_.login_hint(host_));
  return error;
}

void OciClient::ping() {
  attempt("cannot use registry " + host_, [&] {
    http::Request request;
    request.url = url("/v2/");
    const http::Answer answer = client_.send(request);
    // Whether a login is needed, and is good, depends on the repository.
    if (answer.status == 401) return authenticator_.refused({host_, "", {}}, "", answer);
    if (!answer.ok()) throw error_of(request, answer);
  });
}

std::optional<ManifestDocument> OciClient::manifest(const std::string& repository, const std::string& reference) {
  http::Request request;
  request.url = url("/v2/" + repository + "/manifests/" + reference);
  request.headers = {{"Accept", kManifestTypes}};
  const http::Answer answer = call(request, access(repository, "pull"));
  if (answer.status == 404) return std::nullopt;
  if (!answer.ok()) throw error_of(request, answer);
  const std::string* type = answer.header("Content-Type");
  ManifestDocument document{Digest::of(answer.body), answer.body, type ? without_parameters(*type) : ""};
  if (document.media_type.starts_with(kSchema1))
    throw failure(reference + " of " + host_ + "/" + repository + " is a manifest of the old schema 1")
        .hint("push the image again with a newer docker, podman or skopeo");
  const std::string* told = answer.header("Docker-Content-Digest");
  const bool by_digest = reference.starts_with("sha256:");
  const std::string expected = by_digest ? reference : told && told->starts_with("sha256:") ? *told : "";
  if (!expected.empty() && expected != document.digest.str())
    throw failure("manifest " + reference + " of " + host_ + "/" + repository + " has the digest " +
                  document.digest.str() + ", not " + quote(expected));
  return document;
}

std::optional<Digest> OciClient::manifest_digest(const std::string& repository, const std::string& reference) {
  http::Request request;
  request.method = "HEAD";
  request.url = url("/v2/" + repository + "/manifests/" + reference);
  request.headers = {{"Accept", kManifestTypes}};
  const http::Answer answer = call(request, access(repository, "pull"));
  if (answer.status == 404) return std::nullopt;
  if (!answer.ok()) throw error_of(request, answer);
  if (auto told = digest_in(answer, "Docker-Content-Digest")) return told;
  const auto document = manifest(repository, reference);
  return document ? std::optional(document->digest) : std::nullopt;
}

std::optional<std::uint64_t> OciClient::blob_size(const std::string& repository, const Digest& digest) {
  http::Request request;
  request.method = "HEAD";
  request.url = url("/v2/" + repository + "/blobs/" + digest.str());
  const http::Answer answer = call(request, access(repository, "pull"));
  if (answer.status == 404) return std::nullopt;
  if (!answer.ok()) throw error_of(request, answer);
  const std::string* length = answer.header("Content-Length");
  const auto size = length ? number(*length) : std::nullopt;
  if (!size) throw failure("the answer to HEAD " + request.url.shown() + " has no Content-Length");
  return size;
}

std::optional<std::string> OciClient::blob(const std::string& repository, const Digest& digest) {
  const auto size = blob_size(repository, digest);
  if (!size) return std::nullopt;
  if (*size > kLargestBlobInMemory)
    throw failure("blob " + digest.str() + " has " + std::to_string(*size) + " bytes, which no document has");
  std::string text;
  http::Download download(*size, [&](std::string_view piece) { text += piece; });
  if (!read_blob(repository, digest, download)) return std::nullopt;
  if (const Digest found = Digest::of(text); found != digest)
    throw failure("the bytes of blob " + digest.str() + " have the digest " + found.str());
  return text;
}

bool OciClient::read_blob(const std::string& repository, const Digest& digest, http::Download& download) {
  http::Request request;
  request.url = url("/v2/" + repository + "/blobs/" + digest.str());
  const http::Answer answer = call(request, access(repository, "pull"), &download);
  if (answer.status == 404) return false;
  if (!answer.ok()) throw error_of(request, answer);
  return true;
}

bool OciClient::mount_blob(const std::string& repository, const Digest& digest, const std::string& from) {
  http::Request request;
  request.method = "POST";
  request.url = url("/v2/" + repository + "/blobs/uploads/").with("mount", digest.str()).with("from", from);
  AccessRequest both = access(repository, "pull,push");
  both.scopes.push_back("repository:" + from + ":pull");
  try {
    const http::Answer answer = call(request, both);
    // Otherwise an upload began instead, which nobody is going to end.
    if (answer.status == 202) abandon(location_of(request, answer), access(repository, "pull,push"));
    return answer.status == 201;
  } catch (const Error&) {
    // For instance a login that may not read there: sending the blob tells what is wrong, if anything is.
    return false;
  }
}

http::Url OciClient::begin_upload(const std::string& repository, const AccessRequest& access,
                                  std::uint64_t& smallest_chunk) {
  http::Request request;
  request.method = "POST";
  request.url = url("/v2/" + repository + "/blobs/uploads/");
  const http::Answer answer = call(request, access);
  if (answer.status != 202) throw error_of(request, answer);
  if (const std::string* least = answer.header("OCI-Chunk-Min-Length")) smallest_chunk = number(*least).value_or(0);
  return location_of(request, answer);
}

// Returns where the upload is to be ended.
http::Url OciClient::push_chunks(http::Url place, const BlobContent& content, std::uint64_t chunk,
                                 const AccessRequest& access, const std::function<void(std::uint64_t)>& advance) {
  int failures = 0;
  for (std::uint64_t done = 0; done < content.size;) {
    const std::uint64_t part = std::min(chunk, content.size - done);
    http::Request request;
    request.method = "PATCH";
    request.url = place;
    request.repeatable = false;  // half of it may have arrived
    request.headers = {{"Content-Type", "application/octet-stream"},
                       {"Content-Range", std::to_string(done) + "-" + std::to_string(done + part - 1)}};
    request.body.fd = content.fd;
    request.body.offset = done;
    request.body.length = part;
    request.body.advance = [&](std::uint64_t sent) { advance(done + sent); };
    std::optional<Error> broken;
    std::optional<http::Answer> answer;
    try {
      answer = call(request, access);
    } catch (const Error& error) {
      broken = error;
    }
    if (answer && (answer->status == 202 || answer->status == 201 || answer->status == 204)) {
      place = location_of(request, *answer);
      // Where it says less than it had before, its counting is not to be relied upon; the digest is.
      const auto there = received(*answer);
      done = there && *there > done && *there <= content.size ? *there : done + part;
      failures = 0;
      continue;
    }
    if (answer && answer->status != 416 && !http::is_passing(answer->status)) throw error_of(request, *answer);
    if (++failures > 5) throw broken ? *broken : error_of(request, *answer);
    // The registry knows how far it came.
    http::Request ask;
    ask.url = place;
    const http::Answer state = call(ask, access);
    const auto there = received(state);
    if (!state.ok() || !there || *there > content.size) throw broken ? *broken : error_of(request, *answer);
    done = *there;
    if (const std::string* location = state.header("Location")) place = state.url.resolve(*location);
  }
  return place;
}

// Empty when it is there.
std::optional<http::Answer> OciClient::upload(const std::string& repository, const Digest& digest,
                                              const BlobContent& content,
                                              const std::function<void(std::uint64_t)>& advance) {
  const AccessRequest write = access(repository, "pull,push");
  std::uint64_t smallest = 0;
  http::Url place = begin_upload(repository, write, smallest);
  http::Request end;
  end.method = "PUT";
  end.headers = {{"Content-Type", "application/octet-stream"}};
  try {
    if (content.fd < 0 || content.size <= kChunk)
      end.body = {content.text, content.fd, 0, content.size, advance};
    else
      place = push_chunks(place, content, std::max(kChunk, smallest), write, advance);
    end.url = place.with("digest", digest.str());
    http::Answer answer = call(end, write);
    if (answer.status == 201 || answer.status == 204) return std::nullopt;
    abandon(place, write);
    return answer;
  } catch (const Error&) {
    abandon(place, write);
    throw;
  }
}

// Unless it is told, a registry keeps the part that it has for days.
void OciClient::abandon(const http::Url& upload, const AccessRequest& access) {
  try {
    http::Request cancel;
    cancel.method = "DELETE";
    cancel.url = upload;
    call(cancel, access);
  } catch (const Error&) {
    // It is away, which is why we are here.
  }
}

void OciClient::push_blob(const std::string& repository, const Digest& digest, const BlobContent& content,
                          const std::function<void(std::uint64_t)>& advance) {
  for (int tries = 1;; ++tries) {
    const bool last = tries == kMostUploads;
    try {
      const auto refusal = upload(repository, digest, content, advance);
      if (!refusal) return;
      http::Request request;
      request.method = "PUT";
      request.url = refusal->url;
      if (last || !may_pass(*refusal)) throw UploadRefused(error_of(request, *refusal));
    } catch (const UploadRefused& refused) {
      throw Error(refused);
    } catch (const Error&) {
      if (last) throw;
    }
    // The answer may be all that was lost.
    if (blob_size(repository, digest) == content.size) return;
  }
}

std::optional<Digest> OciClient::push_manifest(const std::string& repository, const std::string& reference,
                                               const std::string& media_type, const std::string& bytes) {
  http::Request request;
  request.method = "PUT";
  request.url = url("/v2/" + repository + "/manifests/" + reference);
  request.headers = {{"Content-Type", media_type}};
  request.body.text = bytes;
  for (int tries = 1;; ++tries) {
    const http::Answer answer = call(request, access(repository, "pull,push"));
    if (answer.status == 201 || answer.status == 200) return digest_in(answer, "OCI-Subject");
    if (tries == kMostManifestPuts || !misses_a_blob(answer)) throw error_of(request, answer);
    std::this_thread::sleep_for(kBlobSettles * tries);
  }
}

void OciClient::delete_manifest(const std::string& repository, const Digest& digest) {
  http::Request request;
  request.method = "DELETE";
  request.url = url("/v2/" + repository + "/manifests/" + digest.str());
  const http::Answer answer = call(request, access(repository, "pull,delete"));
  if (answer.ok() || answer.status == 404) return;
  if (answer.status == 405 || answer.body.find("\"UNSUPPORTED\"") != std::string::npos)
    throw usage_error("the registry lets nobody delete: " + error_of(request, answer).message())
        .hint(
            "allow it in the registry's configuration (docker-registry: storage.delete.enabled), or remove layers by "
            "the registry's own means");
  throw error_of(request, answer);
}

std::vector<std::string> OciClient::pages(const std::string& target, const char* member, const AccessRequest& access,
                                          std::optional<http::Answer>& refusal) {
  std::vector<std::string> names;
  ListBudget budget(host_);
  http::Request request;
  request.url = url(target);
  for (int page = 0; page < kMostPages; ++page) {
    http::Answer answer = call(request, access);
    if (!answer.ok()) {
      if (page > 0 || (answer.status != 404 && answer.status != 401 && answer.status != 403 && answer.status != 405))
        throw error_of(request, answer);
      refusal = std::move(answer);
      return names;
    }
    const Json json = parse_json(answer.body, request.url.shown());
    const auto list = json.is_object() ? json.find(member) : json.end();
    if (list != json.end() && list->is_array())
      for (const Json& name : *list)
        if (name.is_string()) budget.take(names.emplace_back(name.get<std::string>()));
    const auto next = next_page(answer);
    if (!next) return names;
    request.url = answer.url.resolve(*next);
    if (!request.url.same_origin(url("/"))) throw failure("the list of " + host_ + " goes on at another host");
  }
  throw failure("the list of " + host_ + " does not end");
}

std::vector<std::string> OciClient::tags(const std::string& repository) {
  std::optional<http::Answer> refusal;
  auto names = pages("/v2/" + repository + "/tags/list?n=1000", "tags", access(repository, "pull"), refusal);
  if (refusal && refusal->status != 404) {
    http::Request request;
    request.url = refusal->url;
    throw error_of(request, *refusal);
  }
  return names;
}

std::optional<std::vector<std::string>> OciClient::repositories(const std::string& below) {
  std::optional<http::Answer> refusal;
  // The login of who works below that path.
  const AccessRequest all{host_, below, {"registry:catalog:*"}};
  std::vector<std::string> names = pages("/v2/_catalog?n=1000", "repositories", all, refusal);
  if (refusal) return std::nullopt;
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(below + "/"); });
  return names;
}

}  // namespace dsec::registry
