#include "registry/oci/referrers.h"

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/base/error.h"
#include "core/base/json.h"

namespace dsec::registry {
namespace {

constexpr const char* kIndexType = "application/vnd.oci.image.index.v1+json";
// Somebody else may write the list at the same time, and nothing but looking again tells who was the last.
constexpr int kMostWrites = 5;
constexpr std::chrono::milliseconds kFirstRest{50};

/// Empty for what somebody else has put there, and has none.
std::optional<Digest> subject_of(const Json& artifact) {
  const auto subject = artifact.is_object() ? artifact.find("subject") : artifact.end();
  if (subject == artifact.end() || !subject->is_object()) return std::nullopt;
  const std::string digest = json_string_or(*subject, "digest", "");
  if (!digest.starts_with("sha256:") || !Digest::valid_hex(digest.substr(7))) return std::nullopt;
  return Digest::parse(digest);
}

std::string list_tag(const Digest& subject) { return "sha256-" + subject.hex(); }

bool is_of(const Json& entry, const Digest& digest) {
  return entry.is_object() && json_string_or(entry, "digest", "") == digest.str();
}

std::string index_of(const Json& entries) {
  return canonical_json({{"schemaVersion", 2}, {"mediaType", kIndexType}, {"manifests", entries}});
}

/// The entries of the list, and what it is now; none where there is no list.
Json entries_of(const std::optional<ManifestDocument>& list, const std::string& what) {
  if (!list) return Json::array();
  const Json json = parse_json(list->bytes, what);
  const auto entries = json.is_object() ? json.find("manifests") : json.end();
  if (entries == json.end() || !entries->is_array())
    throw failure(what + " is no index").hint("remove that tag, which is not of dsec's making");
  return *entries;
}

/// Changes the list of `subject` by `change`, which is repeated until what is there is as it leaves it. What has gone
/// goes from it, too: registries refuse an index of what they do not have.
void change_list(OciClient& client, const std::string& repository, const Digest& subject,
                 const std::function<void(Json& entries)>& change) {
  const std::string tag = list_tag(subject),
                    what = "the list of what refers to " + subject.str() + " (" + repository + ":" + tag + ")";
  for (int write = 0;; ++write) {
    const auto list = client.manifest(repository, tag);
    const Json before = entries_of(list, what);
    Json after = before;
    change(after);
    if (after == before) return;
    if (write == kMostWrites) throw failure(what + " is changed by others again and again").hint("try again");
    if (write > 0) std::this_thread::sleep_for(kFirstRest * write);
    for (auto entry = after.begin(); entry != after.end();) {
      const std::string digest = entry->is_object() ? json_string_or(*entry, "digest", "") : "";
      entry = digest.empty() || !client.manifest_digest(repository, digest) ? after.erase(entry) : entry + 1;
    }
    if (!after.empty())
      client.push_manifest(repository, tag, kIndexType, index_of(after));
    else if (list)
      client.delete_manifest(repository, list->digest);
    // Else what was pushed a moment ago is not to be seen yet.
  }
}

}  // namespace

void push_referrer(OciClient& client, const std::string& repository, const std::string& tag,
                   const std::string& artifact) {
  const Json json = parse_json(artifact, "an artifact");
  const Digest subject = subject_of(json).value(), own = Digest::of(artifact);
  const auto replaced = client.manifest_digest(repository, tag);
  if (client.push_manifest(repository, tag, kImageManifestType, artifact) == subject) return;
  change_list(client, repository, subject, [&](Json& entries) {
    bool listed = false;
    for (auto entry = entries.begin(); entry != entries.end();) {
      const bool is_own = is_of(*entry, own);
      if ((is_own && listed) || (replaced && *replaced != own && is_of(*entry, *replaced))) {
        entry = entries.erase(entry);
        continue;
      }
      listed = listed || is_own;
      ++entry;
    }
    if (!listed)
      entries.push_back({{"mediaType", kImageManifestType},
                         {"digest", own.str()},
                         {"size", artifact.size()},
                         {"artifactType", json_string(json, "artifactType")}});
  });
}

void delete_referrer(OciClient& client, const std::string& repository, const ManifestDocument& artifact) {
  client.delete_manifest(repository, artifact.digest);
  const auto subject = subject_of(parse_json(artifact.bytes, "an artifact"));
  if (!subject) return;
  change_list(client, repository, *subject, [&](Json& entries) {
    for (auto entry = entries.begin(); entry != entries.end();)
      entry = is_of(*entry, artifact.digest) ? entries.erase(entry) : entry + 1;
  });
}

}  // namespace dsec::registry
