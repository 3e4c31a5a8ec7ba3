#include "core/base/qcow2_writer.h"

#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"

namespace dsec {
namespace {

constexpr unsigned kClusterBits = 16;
static_assert(kQcow2Cluster == 1u << kClusterBits);
constexpr std::uint64_t kEntry = 8, kEntries = kQcow2Cluster / kEntry;  // of a table that has a cluster
constexpr std::uint64_t kRefcountBytes = 2, kRefcounts = kQcow2Cluster / kRefcountBytes;
// Of an entry whose cluster nobody else uses, so that it is written to where it is.
constexpr std::uint64_t kOwn = 1ull << 63;

void put_big(std::string& bytes, std::size_t at, std::uint64_t number, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes.at(at + i) = static_cast<char>(number >> (8 * (size - 1 - i)) & 0xff);
}

std::uint64_t clusters_for(std::uint64_t bytes) { return (bytes + kQcow2Cluster - 1) / kQcow2Cluster; }

void write_at(int fd, std::string_view bytes, std::uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw system_error("write an image");
    bytes.remove_prefix(static_cast<std::size_t>(put));
    at += static_cast<std::uint64_t>(put);
  }
}

}  // namespace

// The header is the first cluster, and the first table follows.
Qcow2Writer::Qcow2Writer(int fd, std::uint64_t size)
    : fd_(fd), size_(size), top_(clusters_for(clusters_for(size) * kEntry)) {
  next_ = 1 + clusters_for(top_.size() * kEntry);
}

std::uint64_t Qcow2Writer::append(std::string_view cluster) {
  const std::uint64_t at = next_++ * kQcow2Cluster;
  write_at(fd_, cluster, at);
  return at;
}

void Qcow2Writer::end_table() {
  if (table_.empty()) return;
  top_.at(table_number_) = append(table_) | kOwn;
  table_.clear();
}

void Qcow2Writer::put(std::uint64_t number, std::string_view content) {
  if (content.size() != kQcow2Cluster) throw Error(ErrorKind::Internal, "a cluster of an image has another size");
  if (number / kEntries != table_number_) end_table();
  table_number_ = number / kEntries;
  if (table_.empty()) table_.assign(kQcow2Cluster, '\0');
  put_big(table_, number % kEntries * kEntry, append(content) | kOwn, kEntry);
}

void Qcow2Writer::finish() {
  end_table();
  // Refcounts are counted, too: those of their blocks and of the table that leads to these.
  std::uint64_t blocks = 1, table_clusters = 1;
  while (blocks * kRefcounts < next_ + blocks + table_clusters) {
    ++blocks;
    table_clusters = clusters_for(blocks * kEntry);
  }
  const std::uint64_t all = next_ + blocks + table_clusters;
  std::string refcount_table(table_clusters * kQcow2Cluster, '\0');
  for (std::uint64_t block = 0; block < blocks; ++block) {
    std::string counts(kQcow2Cluster, '\0');
    for (std::uint64_t i = 0; i < kRefcounts && block * kRefcounts + i < all; ++i)
      put_big(counts, i * kRefcountBytes, 1, kRefcountBytes);
    put_big(refcount_table, block * kEntry, append(counts), kEntry);
  }
  const std::uint64_t refcount_table_at = next_ * kQcow2Cluster;
  write_at(fd_, refcount_table, refcount_table_at);

  std::string table(clusters_for(top_.size() * kEntry) * kQcow2Cluster, '\0');
  for (std::size_t i = 0; i < top_.size(); ++i) put_big(table, i * kEntry, top_[i], kEntry);
  write_at(fd_, table, kQcow2Cluster);

  std::string header(kQcow2Cluster, '\0');
  put_big(header, 0, 0x514649fb, 4);  // "QFI\xfb"
  put_big(header, 4, 3, 4);           // version
  put_big(header, 20, kClusterBits, 4);
  put_big(header, 24, size_, 8);
  put_big(header, 36, top_.size(), 4);
  put_big(header, 40, kQcow2Cluster, 8);
  put_big(header, 48, refcount_table_at, 8);
  put_big(header, 56, table_clusters, 4);
  put_big(header, 96, 4, 4);     // a refcount has 1 << 4 bits
  put_big(header, 100, 104, 4);  // bytes of this header
  write_at(fd_, header, 0);
}

}  // namespace dsec
