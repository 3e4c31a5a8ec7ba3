#include "layers/import.h"

#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_reader.h"
#include "layers/erofs/erofs_writer.h"
#include "layers/erofs/mkfs.h"
#include "layers/oci/image_documents.h"

namespace dsec::layers {
namespace {

/// Puts a tree below a path, and tells how far it is.
class PlacedSink : public TreeSink {
 public:
  PlacedSink(TreeSink& under, std::string to, std::string step, Progress& progress)
      : under_(under), to_(std::move(to)), step_(std::move(step)), progress_(progress) {}

  void entry(const Entry& entry) override {
    if (to_.empty()) return under_.entry(entry);
    Entry placed = entry;
    placed.path = below(entry.path);
    if (entry.type == EntryType::HardLink) placed.target = below(entry.target);
    under_.entry(placed);
  }
  void data(std::string_view bytes) override {
    under_.data(bytes);
    done_ += bytes.size();
    progress_.advance(step_, done_, 0);
  }
  std::uint64_t bytes() const noexcept { return done_; }

 private:
  std::string below(const std::string& path) const { return path.empty() ? to_ : to_ + "/" + path; }

  TreeSink& under_;
  const std::string to_, step_;
  Progress& progress_;
  std::uint64_t done_ = 0;
};

std::string uuid_for(const SourceFacts& facts, std::size_t image, const std::string& to) {
  // Two images of one layer, or of one input at two places, are two filesystems.
  return uuid_of(Digest::of(facts.identity.str() + "\n" + std::to_string(image) + "\n" + to));
}

/// The manifest names each directory that has no entry of its own, and its size is bounded; told before any blob is
/// kept.
void check_implied(const std::set<std::string>& directories) {
  constexpr std::uint64_t kMost = 15 << 20;
  std::uint64_t bytes = 0;
  for (const std::string& path : directories) bytes += path.size() + 3;
  if (bytes > kMost)
    throw refusal(Refusal::EntryLimit, std::to_string(directories.size()) +
                                           " directories have no entries of their own, and the names of more than " +
                                           format_size(kMost) + " do not fit into a manifest");
}

}  // namespace

std::string host_platform() {
  utsname name{};
  ::uname(&name);
  const std::string machine = name.machine;
  if (machine == "x86_64") return "linux/amd64";
  if (machine == "aarch64") return "linux/arm64";
  if (machine == "i686" || machine == "i386") return "linux/386";
  if (machine.starts_with("armv7")) return "linux/arm/v7";
  return "linux/" + machine;
}

LayerManifest make_layer(engine::BlobSession& session, Source& source, const ImportOptions& options,
                         Progress& progress) {
  if (options.compression != "none" && options.compression != "lz4" && options.compression != "zstd")
    throw usage_error("compression " + quote(options.compression) + " is unknown").hint("none, lz4 or zstd");
  if (!options.platform.empty()) Platform::parse(options.platform);
  const std::string step = "import " + options.name.str() + (options.tag.empty() ? "" : ":" + options.tag);
  const auto started = std::chrono::steady_clock::now();
  const std::string to = normal_path(options.to, options.limits);
  const Mkfs mkfs = Mkfs::find();
  if (fitness_of_mkfs(mkfs.version) == MkfsFitness::Old)
    progress.warn("mkfs.erofs " + mkfs.version +
                  " is older than 1.9.3: images may differ from those that newer ones make of the same input");
  progress.begin(step);
  SourceFacts facts = source.examine(
      {.platform = options.platform, .collapse_limit = options.collapse_limit, .limits = options.limits}, progress);
  for (const std::string& warning : facts.warnings) progress.warn(warning);

  LayerManifest manifest{.name = options.name,
                         .platform = facts.platform,
                         .images = {},
                         .config = std::move(facts.config),
                         .provenance = std::move(facts.provenance),
                         .implicit_parents = {}};
  if (manifest.platform.empty()) manifest.platform = options.platform.empty() ? host_platform() : options.platform;
  if (!to.empty()) manifest.provenance.options["to"] = "/" + to;
  if (options.collapse_limit != SourceOptions{}.collapse_limit)
    manifest.provenance.options["collapse_limit"] = std::to_string(options.collapse_limit);
  manifest.provenance.mkfs = mkfs.version;

  std::set<std::string> implicit, own;  // directories without and with an entry in any image
  std::uint64_t bytes = 0;
  for (std::size_t image = 0; image < facts.images; ++image) {
    ErofsWriter writer(mkfs, session, {.compression = options.compression, .uuid = uuid_for(facts, image, to)});
    PlacedSink sink(writer, to, step, progress);
    source.emit(image, sink);
    check_implied(writer.implicit_directories());
    manifest.images.push_back(writer.finish());
    const std::set<std::string>& implied = writer.implicit_directories();
    for (const std::string& path : writer.directories())
      if (!implied.contains(path)) own.insert(path);
    implicit.insert(implied.begin(), implied.end());
    bytes += sink.bytes();
  }
  std::set_difference(implicit.begin(), implicit.end(), own.begin(), own.end(),
                      std::back_inserter(manifest.implicit_parents));
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started);
  progress.end(step, format_size(bytes) + " in " + format_duration(took));
  return manifest;
}

engine::StoredLayer import_layer(engine::LayerStore& store, Source& source, const ImportOptions& options,
                                 Progress& progress) {
  if (!options.tag.empty() && !valid_tag(options.tag)) throw usage_error(quote(options.tag) + " is no tag");
  const std::string label = options.name.str() + (options.tag.empty() ? "" : ":" + options.tag);
  return attempt("cannot import " + label, [&] {
    const std::unique_ptr<engine::BlobSession> session = store.begin_session();
    const LayerManifest manifest = make_layer(*session, source, options, progress);
    return store.add(manifest, options.tag, engine::Trust::BuiltHere, *session, options.labels);
  });
}

}  // namespace dsec::layers
