#include "layers/archive/decompress.h"

#include <archive.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>

#include "core/base/error.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {

struct ArchiveDeleter {
  void operator()(archive* handle) const { archive_read_free(handle); }
};

bool is_zstd_skippable(std::string_view head) {
  return head.size() >= 4 && (static_cast<unsigned char>(head[0]) & 0xf0) == 0x50 &&
         head.substr(1, 3) == "\x2a\x4d\x18";
}

int filter_code(Packing packing) {
  switch (packing) {
    case Packing::Gzip:
      return ARCHIVE_FILTER_GZIP;
    case Packing::Zstd:
      return ARCHIVE_FILTER_ZSTD;
    case Packing::Xz:
      return ARCHIVE_FILTER_XZ;
    case Packing::Bzip2:
      return ARCHIVE_FILTER_BZIP2;
    case Packing::None:
      break;
  }
  return ARCHIVE_FILTER_NONE;
}

}  // namespace

Packing packing_of(std::string_view head) {
  using namespace std::string_view_literals;
  if (head.starts_with("\x1f\x8b"sv)) return Packing::Gzip;
  if (head.starts_with("\x28\xb5\x2f\xfd"sv) || is_zstd_skippable(head)) return Packing::Zstd;
  if (head.starts_with("\xfd"
                       "7zXZ\0"sv))
    return Packing::Xz;
  if (head.starts_with("BZh"sv) && head.size() > 3 && head[3] >= '1' && head[3] <= '9') return Packing::Bzip2;
  return Packing::None;
}

/// libarchive's handle with one filter named by us: left to itself it would also unpack what was packed twice.
struct UnpackedStream::Filter {
  std::unique_ptr<archive, ArchiveDeleter> handle{archive_read_new()};
  UnpackedStream& owner;
  std::exception_ptr thrown;  // by the stream below, inside libarchive's callback
  std::string_view failing = "unpack";
  bool ended = false;

  explicit Filter(UnpackedStream& stream) : owner(stream) {
    if (!handle) throw system_error("allocate", ENOMEM);
    check(archive_read_support_format_raw(handle.get()));
    check(archive_read_support_format_empty(handle.get()));
    check(archive_read_append_filter(handle.get(), filter_code(owner.packing_)));
    check(archive_read_open(handle.get(), this, nullptr, &Filter::read, nullptr));
    archive_entry* entry = nullptr;
    const int code = archive_read_next_header(handle.get(), &entry);
    if (code == ARCHIVE_EOF)
      ended = true;
    else
      check(code);
  }

  void check(int code) {
    if (thrown) std::rethrow_exception(std::exchange(thrown, nullptr));
    if (code >= ARCHIVE_WARN) return;
    const char* text = archive_error_string(handle.get());
    const std::string reason = text ? text : "unknown reason";
    // libarchive has one error code for both; its texts for an early end all have this word, in either case.
    const bool truncated = reason.find("runcated") != std::string::npos;
    throw refusal(truncated ? Refusal::Truncated : Refusal::Damaged, "cannot unpack: " + reason);
  }

  static la_ssize_t read(archive* handle, void* self, const void** out) {
    auto& filter = *static_cast<Filter*>(self);
    try {
      const std::string_view piece =
          filter.owner.head_.empty() ? filter.owner.packed_.next() : std::exchange(filter.owner.head_, {});
      *out = piece.data();
      return static_cast<la_ssize_t>(piece.size());
    } catch (...) {
      filter.thrown = std::current_exception();
      archive_set_error(handle, EIO, "reading failed");
      return ARCHIVE_FATAL;
    }
  }
};

UnpackedStream::UnpackedStream(ByteStream& packed) : packed_(packed) {
  head_ = packed_.next();
  packing_ = packing_of(head_);
  if (packing_ != Packing::None) filter_ = std::make_unique<Filter>(*this);
}

UnpackedStream::~UnpackedStream() = default;

std::string_view UnpackedStream::next() {
  if (!filter_) return head_.empty() ? packed_.next() : std::exchange(head_, {});
  while (!filter_->ended) {
    const void* data = nullptr;
    std::size_t size = 0;
    la_int64_t offset = 0;
    const int code = archive_read_data_block(filter_->handle.get(), &data, &size, &offset);
    if (code == ARCHIVE_EOF)
      filter_->ended = true;
    else
      filter_->check(code);
    if (size > 0 && code != ARCHIVE_EOF) return {static_cast<const char*>(data), size};
  }
  return {};
}

}  // namespace dsec::layers
