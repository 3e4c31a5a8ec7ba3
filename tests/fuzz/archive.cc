// Tar archives of every packing as a plain archive and as the layers of an image, all through to what is written: the
// input is cut into up to three archives at the marks "\n--\n".

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/archive_source.h"
#include "layers/erofs/tar_writer.h"

using namespace dsec;
using namespace dsec::layers;

namespace {

FileSpan in_memory(std::string_view bytes) {
  auto fd = std::make_shared<const UniqueFd>(::memfd_create("fuzz", MFD_CLOEXEC));
  write_all(fd->get(), bytes);
  return {fd, 0, bytes.size()};
}

class CheckingSink : public TreeSink {
 public:
  void entry(const Entry& entry) override {
    if (left_ != 0 || tar_header_blocks(entry).size() % 512 != 0) __builtin_trap();
    if (entry.path.starts_with('/') || entry.path == ".." || entry.path.starts_with("../") ||
        entry.path.find("/../") != std::string::npos)
      __builtin_trap();
    left_ = entry.type == EntryType::File ? entry.size : 0;
  }
  void data(std::string_view bytes) override {
    if (bytes.size() > left_) __builtin_trap();
    left_ -= bytes.size();
  }

 private:
  std::uint64_t left_ = 0;
};

void run(LayerTree::Markers markers, std::string_view input, std::uint64_t collapse_limit) {
  try {
    ArchiveStack stack(markers,
                       {.platform = {},
                        .collapse_limit = collapse_limit,
                        .limits = {.unpacked_bytes = 8 << 20, .entries = 2000, .path_bytes = 4096, .ratio = 1000}});
    Progress progress;
    for (int part = 0; part < 3 && !input.empty(); ++part) {
      const std::size_t end = input.find("\n--\n");
      stack.add(in_memory(input.substr(0, end)), {"input", {}, {}}, progress);
      input.remove_prefix(end == std::string_view::npos ? input.size() : end + 4);
    }
    const std::size_t images = stack.finish();
    for (std::size_t image = 0; image < images; ++image) {
      CheckingSink sink;
      stack.emit(image, sink);
      sink.entry({});
    }
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  run(LayerTree::Markers::Ordinary, input, 1ull << 40);
  run(LayerTree::Markers::Delete, input, 0);
  return 0;
}
