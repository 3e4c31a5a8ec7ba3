// Where the data of a layer lies in the layers of an image, as any registry may answer it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/model/data_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec;
  try {
    const DataIndex index = DataIndex::parse({reinterpret_cast<const char*>(data), size}, "it");
    std::uint64_t end = 0;
    for (const DataIndex::Run& run : index.runs) {
      const DataIndex::Part& part = index.parts.at(run.part);
      if (run.at < end || run.length == 0 || run.at + run.length > index.size) std::abort();
      if (run.offset + run.length > part.size) std::abort();
      end = run.at + run.length;
    }
    // What is accepted comes back from what is written of it.
    if (DataIndex::parse(index.bytes(), "it") != index) std::abort();
    constexpr std::uint64_t kPiece = 64 << 10;
    const std::uint64_t at = index.runs.empty() ? 0 : index.runs.back().at / kPiece * kPiece;
    const std::uint64_t wanted = index.size - at < kPiece ? index.size - at : kPiece;
    for (const PartRead& read : reads_of(index, at, wanted)) {
      if (read.offset + read.length > index.parts.at(read.part).size) std::abort();
      for (const PartRead::Piece& piece : read.pieces)
        if (piece.from + piece.length > read.length || piece.to + piece.length > wanted) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
