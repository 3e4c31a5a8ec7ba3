#include "layers/oci/image_source.h"

#include "core/base/error.h"
#include "layers/archive/refusal.h"
#include "layers/import.h"
#include "layers/oci/remote_files.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

std::string_view scheme_of(ImageSource::Form form) {
  switch (form) {
    case ImageSource::Form::Layout:
      return "oci-layout";
    case ImageSource::Form::Archive:
      return "oci-archive";
    case ImageSource::Form::DockerArchive:
      return "docker-archive";
    case ImageSource::Form::Registry:
      return "docker";
  }
  return "";
}

}  // namespace

ImageSource::ImageSource(Form form, const std::string& location, fs::path spool)
    : form_(form), spool_(std::move(spool)) {
  // Paths and references may both hold colons, but only one of the ways to split names something that exists.
  std::error_code error;
  for (std::size_t end = location.size(); end != std::string::npos && end > 0; end = location.rfind(':', end - 1)) {
    if (end != location.size() && location[end] != ':') continue;
    if (!fs::exists(location.substr(0, end), error)) continue;
    path_ = location.substr(0, end);
    if (end < location.size()) reference_ = location.substr(end + 1);
    return;
  }
  throw failure("there is no " + quote(location))
      .hint("the form is " + std::string(scheme_of(form)) + ":PATH or " + std::string(scheme_of(form)) +
            ":PATH:REFERENCE");
}

ImageSource::ImageSource(std::string reference, engine::OpenRemoteImage open, fs::path spool)
    : form_(Form::Registry),
      path_("docker:" + reference),
      spool_(std::move(spool)),
      reference_(std::move(reference)),
      open_(std::move(open)) {}

ImageSource::~ImageSource() = default;

FoundImage ImageSource::find(const SourceOptions& options, const Platform& wanted, Progress& progress) {
  if (form_ == Form::Registry) {
    if (!open_) throw failure("there is no way to a registry here").hint("dsec import");
    remote_ = open_(reference_, progress);
    const engine::RemoteImage::Root root = remote_->root();
    files_ = std::make_unique<RemoteFiles>(*remote_, spool_, progress);
    return find_image(*files_, {{root.digest, root.size, root.media_type, "", {}, {}, {}}}, wanted);
  }
  if (form_ == Form::Layout) {
    if (!fs::is_directory(path_)) throw failure("it is no directory").hint("oci-archive: or docker-archive: for files");
    files_ = std::make_unique<DirectoryFiles>(path_);
  } else {
    if (fs::is_directory(path_)) throw failure("it is a directory").hint("oci-layout: for directories");
    files_ = std::make_unique<ArchiveFiles>(path_, spool_, options.limits);
  }
  return form_ == Form::DockerArchive ? find_in_docker_archive(*files_, reference_)
                                      : find_in_layout(*files_, reference_, wanted);
}

void ImageSource::check_plain(const FoundImage& image) const {
  for (std::size_t i = 0; i < image.layers.size(); ++i) {
    const FoundImage::Layer& layer = image.layers[i];
    if (layer.packed == image.document.diff_ids[i]) continue;
    throw failure(layer.name + " is compressed, so that files cannot be read out of the middle of it")
        .hint("skopeo copy --dest-decompress docker:" + reference_ +
              " dir:FOLDER, then skopeo copy --preserve-digests dir:FOLDER docker://HOST/REPOSITORY:TAG: an image with "
              "plain layers")
        .hint("dsec import and dsec publish, which make a copy of the contents");
  }
}

SourceFacts ImageSource::examine(const SourceOptions& options, Progress& progress) {
  const bool chosen = !options.platform.empty();
  const Platform wanted = Platform::parse(chosen ? options.platform : host_platform());
  return attempt("cannot read image " + quote(path_.native()), [&] {
    const FoundImage image = find(options, wanted, progress);
    if (plain_layers_) check_plain(image);
    SourceFacts facts;
    if (!image.document.platform.empty()) {
      facts.platform = image.document.platform.str();
      // Configs often leave the variant out that the index has.
      Platform stated = image.document.platform;
      if (stated.variant.empty()) stated.variant = wanted.variant;
      if (!stated.distance(wanted)) {
        if (chosen)
          throw refusal(Refusal::PlatformMissing, "the image is for " + facts.platform + ", not for " + wanted.str());
        facts.warnings.push_back("the image is for " + facts.platform + ", which this host does not run");
      }
    }
    stack_ = std::make_unique<ArchiveStack>(LayerTree::Markers::Delete, options);
    std::string identity = "image";
    for (std::size_t i = 0; i < image.layers.size(); ++i) {
      const FoundImage::Layer& layer = image.layers[i];
      const Digest& diff_id = image.document.diff_ids[i];
      stack_->add(layer.archive, {layer.name, layer.packed, diff_id}, progress);
      identity += "\n" + diff_id.str();
      layers_.push_back({diff_id, layer.archive.size});
    }
    facts.images = stack_->finish();
    manifest_ = image.manifest;
    // All has arrived, and the stack keeps it.
    files_.reset();
    remote_.reset();
    facts.config = image.document.config;
    facts.provenance.source = "oci";
    facts.provenance.inputs["image"] = image.document.digest.str();
    facts.identity = Digest::of(identity);
    const std::vector<std::string> warnings = stack_->warnings();
    facts.warnings.insert(facts.warnings.end(), warnings.begin(), warnings.end());
    return facts;
  });
}

void ImageSource::emit(std::size_t image, TreeSink& sink) { stack_->emit(image, sink); }

}  // namespace dsec::layers
