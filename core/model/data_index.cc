#include "core/model/data_index.h"

#include <algorithm>
#include <stdexcept>

#include "core/base/error.h"
#include "core/base/little_endian.h"

namespace dsec {
namespace {

constexpr std::string_view kMagic = "dsecidx1";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kRawDigest = 32, kHead = 64, kPart = kRawDigest + 8;
// What a blob may have at most; sums of two do not overflow.
constexpr std::uint64_t kLargestBlob = 1ull << 60;
// A request costs more than so many bytes do; and they lie in memory for a while.
constexpr std::uint64_t kGap = 64 << 10, kLargestRead = 8 << 20;

// Seven bits a byte, lowest first; all but the last byte have the highest bit.
void put_varint(std::string& out, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) out += static_cast<char>((number & 0x7f) | 0x80);
  out += static_cast<char>(number);
}

std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t number = 0;
  for (unsigned shift = 0; shift < 63; shift += 7) {
    if (bytes.empty()) throw failure("it ends within a run");
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    number |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return number;
  }
  throw failure("a number in it is too large");
}

std::uint64_t zigzag(std::uint64_t from, std::uint64_t to) {
  return to >= from ? (to - from) << 1 : ((from - to) << 1) - 1;
}

// Where a move leads; beyond any blob when it leads below 0.
std::uint64_t moved(std::uint64_t from, std::uint64_t move) {
  const std::uint64_t by = (move >> 1) + (move & 1);
  if ((move & 1) == 0) return from + by;
  return by > from ? kLargestBlob + 1 : from - by;
}

void put_digest(std::string& out, const Digest& digest) {
  const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i < 2 * kRawDigest; i += 2)
    out += static_cast<char>(value(digest.hex()[i]) << 4 | value(digest.hex()[i + 1]));
}

Digest digest_from(std::string_view raw) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (const char c : raw.substr(0, kRawDigest)) {
    const auto byte = static_cast<unsigned char>(c);
    hex += {kHex[byte >> 4], kHex[byte & 15]};
  }
  return Digest::parse(hex);
}

void put_size(std::string& out, std::uint64_t size) {
  out.resize(out.size() + 8);
  put_u64(out, out.size() - 8, size);
}

std::uint64_t checked_size(std::uint64_t size) {
  if (size > kLargestBlob) throw failure("it names a blob of an impossible size");
  return size;
}

DataIndex parse_index(std::string_view bytes) {
  if (bytes.size() > kLargestDataIndex)
    throw failure("it has " + std::to_string(bytes.size()) + " bytes, more than " + std::to_string(kLargestDataIndex));
  if (!bytes.starts_with(kMagic) || bytes.size() < kHead) throw failure("it is of another type");
  const Fields head(bytes);
  if (const std::uint32_t version = head.u32(8); version != kVersion)
    throw failure("it has format " + std::to_string(version) + ", this dsec knows " + std::to_string(kVersion))
        .hint("use a newer dsec");
  DataIndex index{digest_from(bytes.substr(24)), checked_size(head.u64(16)), {}, {}};
  const std::uint64_t parts = head.u32(12), runs = head.u64(56);
  bytes.remove_prefix(kHead);
  if (bytes.size() / kPart < parts) throw failure("it ends within the list of parts");
  for (std::uint64_t i = 0; i < parts; ++i, bytes.remove_prefix(kPart))
    index.parts.push_back({digest_from(bytes), checked_size(Fields(bytes).u64(kRawDigest))});
  // Each has four numbers of at least a byte.
  if (runs > bytes.size() / 4) throw failure("it has fewer runs than it says");
  index.runs.reserve(runs);
  std::vector<std::uint64_t> next(parts);  // where the last run of each part ended
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < runs; ++i) {
    const std::uint64_t gap = take_varint(bytes), length = take_varint(bytes), part = take_varint(bytes),
                        move = take_varint(bytes);
    if (part >= parts) throw failure("a run lies in a part that is not listed");
    if (gap > index.size - at || length == 0 || length > index.size - at - gap)
      throw failure("a run ends beyond the data");
    const std::uint64_t offset = moved(next[part], move), whole = index.parts[part].size;
    if (offset > whole || length > whole - offset) throw failure("a run ends beyond its part");
    index.runs.push_back({at + gap, length, static_cast<std::uint32_t>(part), offset});
    next[part] = offset + length;
    at += gap + length;
  }
  if (!bytes.empty()) throw failure("something follows its runs");
  return index;
}

/// Joins what lies near each other in a part.
class Requests {
 public:
  void add(const DataIndex::Run& run, std::uint64_t to) {
    if (!reads_.empty() && joins(reads_.back(), run)) {
      PartRead& read = reads_.back();
      read.pieces.push_back({run.offset - read.offset, to, run.length});
      read.length = std::max(read.length, run.offset + run.length - read.offset);
    } else {
      reads_.push_back({run.part, run.offset, run.length, {{0, to, run.length}}});
    }
  }
  std::vector<PartRead> take() { return std::move(reads_); }

 private:
  static bool joins(const PartRead& read, const DataIndex::Run& run) {
    const std::uint64_t end = read.offset + read.length;
    return read.part == run.part && run.offset <= end + kGap && run.offset + run.length - read.offset <= kLargestRead;
  }
  std::vector<PartRead> reads_;
};

}  // namespace

std::string DataIndex::bytes() const {
  std::string out(kMagic);
  out.resize(24);
  put_u32(out, 8, kVersion);
  put_u32(out, 12, static_cast<std::uint32_t>(parts.size()));
  put_u64(out, 16, size);
  put_digest(out, data);
  put_size(out, runs.size());
  for (const Part& part : parts) {
    put_digest(out, part.blob);
    put_size(out, part.size);
  }
  std::vector<std::uint64_t> next(parts.size());
  std::uint64_t at = 0;
  for (const Run& run : runs) {
    put_varint(out, run.at - at);
    put_varint(out, run.length);
    put_varint(out, run.part);
    put_varint(out, zigzag(next.at(run.part), run.offset));
    next[run.part] = run.offset + run.length;
    at = run.at + run.length;
  }
  return out;
}

DataIndex DataIndex::parse(std::string_view bytes, const std::string& origin) {
  return attempt(origin + " is of no use", [&] { return parse_index(bytes); });
}

std::vector<PartRead> reads_of(const DataIndex& index, std::uint64_t at, std::uint64_t size) {
  const std::uint64_t end = at + size;
  auto run = std::upper_bound(index.runs.begin(), index.runs.end(), at,
                              [](std::uint64_t wanted, const DataIndex::Run& r) { return wanted < r.at + r.length; });
  struct Wanted {
    DataIndex::Run run;
    std::uint64_t to;
  };
  std::vector<Wanted> wanted;
  for (; run != index.runs.end() && run->at < end; ++run) {
    const std::uint64_t first = std::max(at, run->at), last = std::min(end, run->at + run->length);
    wanted.push_back({{first, last - first, run->part, run->offset + (first - run->at)}, first - at});
  }
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) {
    return std::pair(a.run.part, a.run.offset) < std::pair(b.run.part, b.run.offset);
  });
  Requests requests;
  for (const Wanted& each : wanted) requests.add(each.run, each.to);
  return requests.take();
}

}  // namespace dsec
