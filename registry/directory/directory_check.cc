#include "registry/directory/directory_check.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/engine/sandbox_id.h"
#include "registry/directory/catalogue_file.h"
#include "registry/directory/directory_notes.h"
#include "registry/directory/file_copy.h"
#include "registry/directory/three_fs.h"
#include "registry/layout/catalog.h"
#include "registry/layout/layout.h"
#include "registry/layout/prefetch_list.h"
#include "registry/layout/publisher_lease.h"
#include "registry/layout/text_in_hand.h"

namespace dsec::registry {
namespace {

using Kind = RegistryProblem::Kind;
using std::chrono::system_clock;

// A publisher makes its lease before anything else but this one temporary file.
constexpr std::chrono::seconds kLeaseless{600};
constexpr std::chrono::seconds kGrace = kThreeFsKeepsRemoved;

class Check {
 public:
  Check(const RegistryRoot& root, const CheckOptions& options, Progress& progress)
      : root_(root), notes_(root), options_(options), progress_(progress) {}

  CheckResult run() {
    // Manifests before blobs: what a publisher adds meanwhile refers only to blobs that were there before it.
    read_leases();
    check_manifests();
    check_tags();
    check_prefetch_lists();
    check_blobs();
    remove_unreferenced();
    check_missing();
    check_leases();
    check_catalogue();
    return std::move(result_);
  }

 private:
  struct Unreferenced {
    Digest digest;
    std::string aside;    ///< the name it got before it is removed
    std::size_t problem;  ///< place in the result
  };

  RegistryProblem& problem(Kind kind, const std::string& path, std::string what) {
    return result_.problems.emplace_back(RegistryProblem{kind, path, std::move(what)});
  }

  // A damaged file that something refers to is missing afterwards, and reported as that too.
  void repair(RegistryProblem& found) {
    if (!options_.repair) return;
    root_.remove(found.path);
    found.repaired = true;
  }

  void read_leases() {
    live_.clear();
    announced_.clear();
    leases_known_ = true;
    for (const FoundLease& lease : find_leases(notes_)) {
      if (!lease.live) continue;
      if (!lease.unreadable.empty()) leases_known_ = false;
      live_.insert(lease.publisher);
      if (!lease.removes) announced_.insert(lease.digests.begin(), lease.digests.end());
    }
  }

  bool younger_than(const std::string& path, std::chrono::seconds age) const {
    const auto status = root_.look(path);
    return status && system_clock::now() - system_clock::from_time_t(status->st_mtime) < age;
  }

  // A temporary file: somebody's work, or what a killed publisher left.
  void check_temporary(const std::string& path) {
    const std::string publisher = publisher_of(last_part(path));
    if (live_.contains(publisher)) return;
    const std::vector<FoundLease> leases = find_leases(notes_);
    const auto lease = std::find_if(leases.begin(), leases.end(),
                                    [&](const FoundLease& found) { return found.publisher == publisher; });
    if (lease == leases.end() ? younger_than(path, kLeaseless) : lease->live) return;
    if (!root_.look(path)) return;  // finished meanwhile
    repair(problem(Kind::Leftover, path, "is what a publisher left that was stopped"));
  }

  // The names in a directory that are no temporary files.
  std::vector<std::string> names_in(const std::string& directory) {
    std::vector<std::string> names;
    try {
      names = root_.list(directory);
    } catch (const Error& error) {
      problem(Kind::Altered, directory, error.message());
      if (directory.starts_with(kManifests)) references_known_ = false;
    }
    for (const std::string& name : names)
      if (name.starts_with(".tmp-")) check_temporary(directory + "/" + name);
    std::erase_if(names, [](const std::string& name) { return name.starts_with(".tmp-"); });
    return names;
  }

  void stray(const std::string& path) { problem(Kind::Leftover, path, "is nothing that belongs into a registry"); }

  void check_tags() {
    names_in(".");
    for (const std::string& kind_name : names_in(std::string(kTags))) {
      const std::string top = std::string(kTags) + "/" + kind_name;
      const auto kind = parse_layer_kind(kind_name);
      if (!kind) {
        stray(top);
        continue;
      }
      for (const std::string& folder : names_in(top)) {
        const auto name = name_of_folder(*kind, folder);
        if (!name) {
          stray(top + "/" + folder);
          continue;
        }
        for (const std::string& tag : names_in(top + "/" + folder)) check_tag(*name, tag);
      }
    }
  }

  void check_tag(const LayerName& name, const std::string& tag) {
    const std::string path = tag_name(name, tag);
    if (!valid_tag(tag)) {
      stray(path);
      return;
    }
    ++result_.tags;
    const auto text = text_of(Kind::DamagedTag, path, kLargestTag, RegistryRoot::Missing::Possible);
    if (!text) return;
    std::optional<Digest> digest;
    try {
      digest = read_tag(TextInHand(*text), name, tag, RegistryRoot::Missing::Possible);
    } catch (const Error& error) {
      repair(problem(Kind::DamagedTag, path, error.message()));
      return;
    }
    try {
      // One that has been moved since leads where it did not lead before.
      if (!root_.open_file(manifest_name(*digest), RegistryRoot::Missing::Expected) &&
          read_tag(root_, name, tag, RegistryRoot::Missing::Possible) == digest)
        repair(problem(Kind::DanglingTag, path, "names " + digest->str() + ", which has no manifest"));
    } catch (const Error&) {
      // Reported where manifests are checked.
    }
  }

  // The text of a small file; empty when it is gone, or told as a problem. One that cannot be read may well be whole,
  // and is never removed.
  std::optional<std::string> text_of(Kind kind, const std::string& path, std::uint64_t limit,
                                     RegistryRoot::Missing missing) {
    try {
      return root_.read_file(path, limit, missing);
    } catch (const Error& error) {
      const auto status = root_.look(path);
      if (!status) return std::nullopt;
      if (!S_ISREG(status->st_mode) || static_cast<std::uint64_t>(status->st_size) > limit) {
        repair(problem(kind, path, error.message()));
        return std::nullopt;
      }
      problem(kind, path, "could not be read: " + error.message());
      if (kind == Kind::DamagedManifest) references_known_ = false;
      return std::nullopt;
    }
  }

  void check_manifests() {
    for (const std::string& shelf : names_in(std::string(kManifests))) {
      const std::string directory = std::string(kManifests) + "/" + shelf;
      for (const std::string& file : names_in(directory)) {
        const auto digest = digest_of_manifest_file(file);
        if (!digest || manifest_name(*digest) != directory + "/" + file) {
          stray(directory + "/" + file);
          continue;
        }
        ++result_.layers;
        known_manifests_.insert(*digest);
        const auto text =
            text_of(Kind::DamagedManifest, manifest_name(*digest), kLargestManifest, RegistryRoot::Missing::Expected);
        if (!text) continue;
        try {
          const LayerManifest manifest = read_manifest(TextInHand(*text), *digest);
          for (const LayerImage& image : manifest.images)
            for (const Blob& blob : image.blobs) referenced_.emplace(blob.digest, blob.size);
        } catch (const Error& error) {
          if (root_.look(manifest_name(*digest)))
            repair(problem(Kind::DamagedManifest, manifest_name(*digest), error.message()));
        }
      }
    }
  }

  // Nobody needs one: what is damaged or of a layer that is gone costs readers a question.
  void check_prefetch_lists() {
    for (const std::string& shelf : names_in(std::string(kPrefetch))) {
      const std::string directory = std::string(kPrefetch) + "/" + shelf;
      for (const std::string& file : names_in(directory)) {
        const auto layer = digest_of_manifest_file(file);
        if (!layer || prefetch_name(*layer) != directory + "/" + file) {
          stray(directory + "/" + file);
          continue;
        }
        try {
          const LayerManifest manifest = read_manifest(root_, *layer);
          if (const auto text = root_.read_file(prefetch_name(*layer), kLargestPrefetchList))
            PrefetchList::parse(*text, *layer, manifest);
        } catch (const Error& error) {
          if (root_.look(prefetch_name(*layer)))
            repair(problem(Kind::Leftover, prefetch_name(*layer), "is of no use: " + error.message()));
        }
      }
    }
  }

  void check_blobs() {
    for (const std::string& shelf : names_in(std::string(kBlobs))) {
      const std::string directory = std::string(kBlobs) + "/" + shelf;
      for (const std::string& file : names_in(directory)) {
        if (!Digest::valid_hex(file) || blob_name(Digest::parse(file)) != directory + "/" + file) {
          stray(directory + "/" + file);
          continue;
        }
        ++result_.blobs;
        check_blob(Digest::parse(file));
      }
    }
  }

  void check_blob(const Digest& digest) {
    const std::string path = blob_name(digest);
    const auto status = root_.look(path);
    if (!status) return;
    if (!S_ISREG(status->st_mode)) {
      repair(problem(Kind::Altered, path, "is no regular file"));
      return;
    }
    const auto size = static_cast<std::uint64_t>(status->st_size);
    const auto expected = referenced_.find(digest);
    if (expected != referenced_.end() && expected->second != size) {
      repair(problem(size < expected->second ? Kind::Truncated : Kind::Altered, path,
                     "has " + std::to_string(size) + " bytes instead of " + std::to_string(expected->second)));
      return;
    }
    if (options_.content && !has_right_bytes(digest, size)) return;
    present_.insert(digest);
    if (expected == referenced_.end()) check_unreferenced(digest, size);
  }

  bool has_right_bytes(const Digest& digest, std::uint64_t size) {
    const std::string path = blob_name(digest), step = "check " + digest.brief();
    progress_.begin(step);
    std::string fault;
    bool damaged = true;
    try {
      const UniqueFd file = root_.open_file(path, RegistryRoot::Missing::Expected);
      if (!file) return false;  // removed by another repair
      const Digest found =
          hash_exactly(file.get(), size, [&](std::uint64_t done) { progress_.advance(step, done, size); });
      result_.bytes += size;
      if (found != digest) fault = "has other bytes: " + found.str();
    } catch (const Error& error) {
      const auto status = root_.look(path);
      damaged = !status || static_cast<std::uint64_t>(status->st_size) != size;
      fault = (damaged ? "" : "could not be read: ") + error.message();
    }
    progress_.end(step, fault.empty() ? format_size(size) : "bad");
    if (fault.empty()) return true;
    RegistryProblem& found = problem(Kind::Altered, path, fault);
    if (damaged) repair(found);
    return false;
  }

  void check_unreferenced(const Digest& digest, std::uint64_t size) {
    const std::string path = blob_name(digest);
    if (!references_known_) return;
    read_leases();
    if (!leases_known_ || announced_.contains(digest) || is_referenced_now(digest)) return;
    const bool young = younger_than(path, kGrace);
    problem(Kind::Unreferenced, path,
            "is named by no manifest and has " + format_size(size) +
                (young ? "; repair keeps it for its first 5 minutes" : ""));
    if (options_.repair && !young) unreferenced_.push_back({digest, "", result_.problems.size() - 1});
  }

  // A publisher that has finished since the manifests were read has taken its lease away again.
  bool is_referenced_now(const Digest& digest) {
    for (const std::string& shelf : root_.list(std::string(kManifests)))
      for (const std::string& file : root_.list(std::string(kManifests) + "/" + shelf)) {
        const auto layer = digest_of_manifest_file(file);
        if (!layer || !known_manifests_.insert(*layer).second) continue;
        try {
          const LayerManifest manifest = read_manifest(root_, *layer);
          for (const LayerImage& image : manifest.images)
            for (const Blob& blob : image.blobs) referenced_.emplace(blob.digest, blob.size);
        } catch (const Error&) {
          references_known_ = false;  // it may name the blob
        }
      }
    return !references_known_ || referenced_.contains(digest);
  }

  // A publisher announces a blob and then looks whether it is there. So it is set aside first, and put back when
  // somebody has announced it: either we see the lease, or the publisher sees that the blob is gone and copies it.
  void remove_unreferenced() {
    if (unreferenced_.empty()) return;
    for (Unreferenced& blob : unreferenced_) {
      const std::string path = blob_name(blob.digest);
      const std::string aside = path.substr(0, path.rfind('/') + 1) + ".tmp-repair-" + engine::random_id(12);
      if (root_.rename(path, aside)) blob.aside = aside;
    }
    std::erase_if(unreferenced_, [](const Unreferenced& blob) { return blob.aside.empty(); });
    try {
      wait_for_other_hosts();
      for (const Unreferenced& blob : unreferenced_) {
        read_leases();
        RegistryProblem& found = result_.problems[blob.problem];
        found.repaired = leases_known_ && !announced_.contains(blob.digest) && !is_referenced_now(blob.digest);
        if (!found.repaired) found.what.clear();  // it was none
        if (found.repaired || !put_back(blob)) root_.remove(blob.aside);
      }
    } catch (...) {
      for (const Unreferenced& blob : unreferenced_) put_back(blob);
      throw;
    }
    std::erase_if(result_.problems, [](const RegistryProblem& found) { return found.what.empty(); });
  }

  // On another host of a 3FS cluster a publisher may still be shown a blob that was set aside. Its lease is here before
  // it looks, so that whoever is shown it has announced it once the name is forgotten everywhere.
  void wait_for_other_hosts() {
    if (root_.address().kind != RegistryAddress::Kind::ThreeFs || unreferenced_.empty()) return;
    const std::string step = "wait until other hosts have forgotten unreferenced blobs";
    progress_.begin(step);
    std::this_thread::sleep_for(options_.three_fs_wait);
    progress_.end(step, std::to_string(options_.three_fs_wait.count()) + "s");
  }

  // False when somebody has published it again, which nothing may replace.
  bool put_back(const Unreferenced& blob) {
    const std::string path = blob_name(blob.digest);
    if (root_.look(path)) return false;
    root_.rename(blob.aside, path);
    return true;
  }

  void check_missing() {
    for (const auto& [digest, size] : referenced_) {
      const std::string path = blob_name(digest);
      if (present_.contains(digest)) continue;
      try {
        // One that is damaged was reported; it counts as missing only when repair has removed it.
        if (!root_.look(path) && !root_.open_file(path, RegistryRoot::Missing::Expected))
          problem(Kind::Missing, path, "is named by a manifest and should have " + std::to_string(size) + " bytes");
      } catch (const Error& error) {
        problem(Kind::Altered, path, error.message());
      }
    }
  }

  void check_leases() {
    for (const std::string& file : names_in(std::string(kLeases))) {
      const std::string path = std::string(kLeases) + "/" + file;
      if (!file.ends_with(".json")) stray(path);
    }
    for (const std::string& file : names_in(std::string(kCondemned)))
      if (!digest_of_manifest_file(file)) stray(std::string(kCondemned) + "/" + file);
    for (const FoundLease& lease : find_leases(notes_))
      if (!lease.live)
        repair(problem(Kind::Leftover, std::string(kLeases) + "/" + lease.publisher + ".json",
                       "is the lease of a publisher that was stopped"));
      else if (!lease.unreadable.empty())
        problem(Kind::Altered, lease_name(lease.publisher), "could not be read: " + lease.unreadable);
  }

  // A publisher at work brings it up to date when it is done.
  bool catalogue_is_behind() {
    if (catalogue_is_current(root_)) return false;
    read_leases();
    return live_.empty() && !catalogue_is_current(root_);
  }

  void check_catalogue() {
    if (!catalogue_is_behind()) return;
    RegistryProblem& found = problem(Kind::Catalogue, std::string(kCatalogue), "does not name what the registry holds");
    if (!options_.repair) return;
    write_catalogue(root_, "repair");
    found.repaired = true;
  }

  const RegistryRoot& root_;
  const DirectoryNotes notes_;
  const CheckOptions& options_;
  Progress& progress_;
  std::set<std::string> live_;
  std::set<Digest> announced_, present_, known_manifests_;
  std::map<Digest, std::uint64_t> referenced_;
  std::vector<Unreferenced> unreferenced_;  // that repair may remove
  bool references_known_ = true;            // each manifest could be read
  bool leases_known_ = true;
  CheckResult result_;
};

}  // namespace

CheckResult check_directory(const RegistryAddress& address, const CheckOptions& options, Progress& progress) {
  const RegistryRoot root = RegistryRoot::open(address);
  return Check(root, options, progress).run();
}

}  // namespace dsec::registry
