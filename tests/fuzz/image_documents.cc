// index.json, manifests, configs and manifest.json from outside: the input stands for each of them in turn.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/oci/image_source.h"

using namespace dsec;
using namespace dsec::layers;

namespace {

class SameFile : public ImageFiles {
 public:
  explicit SameFile(std::string_view bytes) {
    auto fd = std::make_shared<const UniqueFd>(::memfd_create("fuzz", MFD_CLOEXEC));
    write_all(fd->get(), bytes);
    span_ = {fd, 0, bytes.size()};
  }
  std::optional<FileSpan> find(const std::string&) const override { return span_; }

 private:
  FileSpan span_;
};

template <typename Action>
void forgiving(Action&& action) {
  try {
    action();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const SameFile files(text);
  forgiving([&] { find_in_layout(files, "", Platform::parse("linux/amd64")); });
  forgiving([&] { find_in_layout(files, "latest", Platform::parse("linux/amd64")); });
  forgiving([&] { find_in_docker_archive(files, ""); });
  forgiving([&] { ImageDocument::parse(text, "config"); });
  forgiving([&] { Platform::parse(text); });
  return 0;
}
