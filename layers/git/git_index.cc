#include "layers/git/git_index.h"

#include <openssl/evp.h>

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
  std::uint8_t sum[EVP_MAX_MD_SIZE];
  if (EVP_Digest(out.data(), out.size(), sum, nullptr, EVP_sha1(), nullptr) != 1)
    throw Error(ErrorKind::Internal, "sha1 is not available in this OpenSSL");
  out.append(reinterpret_cast<const char*>(sum), ObjectId::kSize);
  return out;
}

}  // namespace dsec::layers
