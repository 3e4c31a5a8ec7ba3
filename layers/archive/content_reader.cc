#include "layers/archive/content_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "layers/archive/decompress.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_header.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kPiece = 512 << 10;

void give_zeros(std::uint64_t size, TreeSink& sink) {
  static constexpr char kZeros[64 << 10] = {};
  while (size > 0) {
    const std::size_t part = std::min<std::uint64_t>(size, sizeof kZeros);
    sink.data({kZeros, part});
    size -= part;
  }
}

}  // namespace

struct ContentReader::Unpacking {
  SpanStream packed;
  UnpackedStream stream{packed};
  std::string_view piece;
  std::uint64_t position = 0;  // of piece

  explicit Unpacking(const FileSpan& archive) : packed(archive) {}

  /// Moves on until `piece` is not empty.
  void refill() {
    if (!piece.empty()) return;
    piece = stream.next();
    if (piece.empty()) throw refusal(Refusal::Truncated, "the archive became shorter while it was read");
  }
  std::string_view take(std::uint64_t limit) {
    refill();
    const std::string_view part = piece.substr(0, std::min<std::uint64_t>(limit, piece.size()));
    piece.remove_prefix(part.size());
    position += part.size();
    return part;
  }
};

ContentReader::ContentReader(FileSpan archive) : archive_(std::move(archive)) {
  char head[kTarBlock];
  const ssize_t got = ::pread(archive_.file->get(), head, std::min<std::uint64_t>(sizeof head, archive_.size),
                              static_cast<off_t>(archive_.offset));
  if (got < 0) throw system_error("read");
  packed_ = packing_of({head, static_cast<std::size_t>(got)}) != Packing::None;
  if (!packed_) buffer_.reset(new char[kPiece]);
}

ContentReader::~ContentReader() = default;

void ContentReader::copy(std::span<const Segment> segments, std::uint64_t size, TreeSink& sink) {
  std::uint64_t at = 0;
  for (const Segment& segment : segments) {
    give_zeros(segment.at - at, sink);
    copy_piece(segment, sink);
    at = segment.at + segment.size;
  }
  give_zeros(size - at, sink);
}

void ContentReader::copy_piece(const Segment& segment, TreeSink& sink) {
  if (packed_) {
    if (!unpacking_ || unpacking_->position > segment.offset) unpacking_ = std::make_unique<Unpacking>(archive_);
    while (unpacking_->position < segment.offset) unpacking_->take(segment.offset - unpacking_->position);
    for (std::uint64_t left = segment.size; left > 0;) {
      const std::string_view part = unpacking_->take(left);
      sink.data(part);
      left -= part.size();
    }
    return;
  }
  for (std::uint64_t done = 0; done < segment.size;) {
    const std::size_t want = std::min<std::uint64_t>(kPiece, segment.size - done);
    const ssize_t got =
        ::pread(archive_.file->get(), buffer_.get(), want, static_cast<off_t>(archive_.offset + segment.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read");
    if (got == 0) throw refusal(Refusal::Truncated, "the archive became shorter while it was read");
    sink.data({buffer_.get(), static_cast<std::size_t>(got)});
    done += static_cast<std::uint64_t>(got);
  }
}

}  // namespace dsec::layers
