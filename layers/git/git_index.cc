#include "layers/git/git_index.h"

// As in core/base/digest.cc.
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>

#include <algorithm>

namespace dsec::layers {
namespace {

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

}  // namespace

std::string git_index_bytes(std::vector<GitIndexEntry> entries, std::int64_t time) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  std::string out = "DIRC";
  put(out, 2, 4);
  put(out, entries.size(), 4);
  for (const GitIndexEntry& entry : entries) {
    const std::size_t start = out.size();
    for (int i = 0; i < 2; ++i) {  // ctime, mtime
      put(out, static_cast<std::uint64_t>(time), 4);
      put(out, 0, 4);
    }
    put(out, 0, 8);  // device, inode
    put(out, entry.mode, 4);
    put(out, 0, 8);  // owner
    put(out, entry.size, 4);
    out.append(reinterpret_cast<const char*>(entry.id.bytes.data()), ObjectId::kSize);
    put(out, std::min<std::size_t>(entry.path.size(), 0xfff), 2);
    out += entry.path;
    out.append(8 - (out.size() - start) % 8, '\0');  // at least one, to a multiple of 8
  }
  SHA_CTX context;
  std::uint8_t sum[SHA_DIGEST_LENGTH];
  SHA1_Init(&context);
  SHA1_Update(&context, out.data(), out.size());
  SHA1_Final(sum, &context);
  out.append(reinterpret_cast<const char*>(sum), ObjectId::kSize);
  return out;
}

}  // namespace dsec::layers
