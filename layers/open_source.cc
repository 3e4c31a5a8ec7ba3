#include "layers/open_source.h"

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "core/base/error.h"
#include "layers/archive/tar_source.h"
#include "layers/dir/debootstrap_source.h"
#include "layers/dir/dir_source.h"
#include "layers/git/git_source.h"
#include "layers/oci/image_source.h"
#include "layers/overlaybd/device_source.h"

namespace dsec::layers {
namespace {

std::string located(const std::string& path, const OpenSourceOptions& options) {
  return options.directory.empty() ? path : (options.directory / path).native();
}

std::unique_ptr<Source> open_tar(const std::string& rest, const OpenSourceOptions& options) {
  return std::make_unique<TarSource>(rest == "-" ? rest : located(rest, options), options.spool);
}

std::unique_ptr<Source> open_dir(const std::string& rest, const OpenSourceOptions& options) {
  return open_dir_source(DirRequest::parse(rest, options.directory));
}

std::unique_ptr<Source> open_git(const std::string& rest, const OpenSourceOptions& options) {
  GitRequest request = GitRequest::parse(rest, options.directory);
  request.scratch = options.spool;
  return open_git_source(std::move(request));
}

std::unique_ptr<Source> open_debootstrap(const std::string& rest, const OpenSourceOptions& options) {
  DebootstrapRequest request = DebootstrapRequest::parse(rest);
  request.spool = options.spool;
  return open_debootstrap_source(std::move(request));
}

template <ImageSource::Form form>
std::unique_ptr<Source> open_image(const std::string& rest, const OpenSourceOptions& options) {
  return std::make_unique<ImageSource>(form, located(rest, options), options.spool);
}

std::unique_ptr<Source> open_docker(const std::string& rest, const OpenSourceOptions& options) {
  return std::make_unique<ImageSource>(rest, options.images, options.spool);
}

std::unique_ptr<Source> open_overlaybd(const std::string& rest, const OpenSourceOptions& options) {
  std::vector<std::filesystem::path> files;
  for (std::size_t begin = 0; begin <= rest.size();) {
    const std::size_t end = std::min(rest.find(',', begin), rest.size());
    files.emplace_back(located(rest.substr(begin, end - begin), options));
    begin = end + 1;
  }
  return open_overlaybd_source(std::move(files), options.spool);
}

std::unique_ptr<Source> open_dockerfile(const std::string&, const OpenSourceOptions&) {
  throw usage_error("a Dockerfile is built, not read").hint("dsec import or dsec build");
}

std::unique_ptr<Source> open_disk(const std::string&, const OpenSourceOptions&) {
  throw usage_error("the disk of a machine is taken as it is, and has no files that could be read here")
      .hint("dsec import base/NAME disk:FILE");
}

struct Scheme {
  std::string_view name, form;
  std::unique_ptr<Source> (*open)(const std::string& rest, const OpenSourceOptions& options);
};

constexpr std::array kSchemes = {
    Scheme{"docker", "docker://HOST/REPOSITORY[:TAG|@DIGEST]", open_docker},
    Scheme{"oci-layout", "oci-layout:DIR[:REF]", open_image<ImageSource::Form::Layout>},
    Scheme{"oci-archive", "oci-archive:FILE[:REF]", open_image<ImageSource::Form::Archive>},
    Scheme{"docker-archive", "docker-archive:FILE[:REF]", open_image<ImageSource::Form::DockerArchive>},
    Scheme{"tar", "tar:FILE|-", open_tar},
    Scheme{"dir", "dir:PATH", open_dir},
    Scheme{"git", "git:PATH|URL@REV", open_git},
    Scheme{"overlaybd", "overlaybd:FILE[,FILE…]", open_overlaybd},
    Scheme{"debootstrap", "debootstrap:SUITE[?include=PACKAGE,…]", open_debootstrap},
    Scheme{"dockerfile", "dockerfile:DIR[?file=FILE&target=STAGE]", open_dockerfile},
    Scheme{"disk", "disk:FILE[?firmware=uefi&agent=yes]", open_disk},
};

}  // namespace

std::unique_ptr<Source> open_source(std::string_view text, const OpenSourceOptions& options) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::string forms;
  std::vector<std::string> names;
  for (const Scheme& scheme : kSchemes) {
    forms += (forms.empty() ? "" : ", ") + std::string(scheme.form);
    names.emplace_back(scheme.name);
    if (colon == std::string_view::npos || name != scheme.name) continue;
    if (colon + 1 == text.size())
      throw usage_error("source " + quote(text) + " names nothing: " + std::string(scheme.form));
    return scheme.open(std::string(text.substr(colon + 1)), options);
  }
  Error error = usage_error("source " + quote(text) + " is of no known kind").hint("one of " + forms);
  for (const std::string& near : nearest_names(name, names)) error.hint("did you mean " + near + ":?");
  throw error;
}

}  // namespace dsec::layers
