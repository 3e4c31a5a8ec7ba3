// The smallest useful EROFS (fs/erofs/erofs_fs.h): block 0 holds the superblock, then come the inodes, 64 bytes each
// with their xattrs behind them, then the directories' entries in blocks of their own.
#include "layers/compose/directory_image.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/base/error.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kBlock = 4096, kInodeUnit = 32, kInode = 64, kDirent = 12;
constexpr std::uint32_t kMagic = 0xE0F5E1E2;
constexpr std::size_t kLimit = 65536;
constexpr std::uint8_t kTypeDirectory = 2;  // EROFS_FT_DIR

// Longest first where one is the beginning of another.
constexpr std::array<std::pair<std::string_view, std::uint8_t>, 5> kPrefixes = {
    {{"user.", 1}, {"system.posix_acl_access", 2}, {"system.posix_acl_default", 3}, {"trusted.", 4}, {"security.", 6}}};

struct Directory {
  const Entry* attributes;
  std::string name;
  Directory* parent;
  std::vector<Directory*> children;  ///< by name
  std::string xattrs;                ///< as stored
  std::string entries;               ///< as stored
  std::uint64_t nid = 0;
  std::uint32_t block = 0;  ///< where its entries are
};

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i);
}

void pad(std::string& out, std::size_t unit) { out.append((unit - out.size() % unit) % unit, '\0'); }

std::string stored_xattrs(const Entry& entry) {
  if (entry.xattrs.empty()) return {};
  std::string out(12, '\0');  // no name filter, nothing shared
  for (const auto& [name, value] : entry.xattrs) {
    const auto prefix = std::find_if(kPrefixes.begin(), kPrefixes.end(),
                                     [&, n = std::string_view(name)](const auto& p) { return n.starts_with(p.first); });
    if (prefix == kPrefixes.end() || name.size() - prefix->first.size() > 255 || value.size() > 65535)
      throw failure("directory " + quote(entry.path) + " has the xattr " + quote(name) + ", which EROFS cannot hold");
    put(out, name.size() - prefix->first.size(), 1);
    put(out, prefix->second, 1);
    put(out, value.size(), 2);
    out += name.substr(prefix->first.size()) + value;
    pad(out, 4);
  }
  return out;
}

// Entries are sorted bytewise over all blocks, "." and ".." among the others.
std::string stored_entries(const Directory& directory) {
  std::vector<std::pair<std::string, std::uint64_t>> all = {
      {".", directory.nid}, {"..", directory.parent ? directory.parent->nid : directory.nid}};
  for (const Directory* child : directory.children) all.emplace_back(child->name, child->nid);
  std::sort(all.begin(), all.end());
  std::string out;
  for (std::size_t first = 0; first < all.size();) {
    pad(out, kBlock);
    std::size_t last = first, used = 0;
    while (last < all.size() && used + kDirent + all[last].first.size() <= kBlock)
      used += kDirent + all[last++].first.size();
    std::size_t name_at = (last - first) * kDirent;
    std::string names;
    for (std::size_t i = first; i < last; ++i) {
      put(out, all[i].second, 8);
      put(out, name_at + names.size(), 2);
      put(out, kTypeDirectory, 1);
      put(out, 0, 1);
      names += all[i].first;
    }
    out += names;
    first = last;
  }
  return out;
}

std::string stored_inode(const Directory& directory, std::uint32_t number) {
  const Entry& entry = *directory.attributes;
  std::string out;
  put(out, 1, 2);  // extended, flat
  put(out, directory.xattrs.empty() ? 0 : 1 + (directory.xattrs.size() - 12) / 4, 2);
  put(out, 0040000 | entry.mode, 2);
  put(out, 0, 2);
  put(out, directory.entries.size(), 8);
  put(out, directory.block, 4);
  put(out, number, 4);
  put(out, entry.uid, 4);
  put(out, entry.gid, 4);
  put(out, static_cast<std::uint64_t>(entry.mtime.seconds), 8);
  put(out, entry.mtime.nanoseconds, 4);
  put(out, 2 + directory.children.size(), 4);
  out.append(kInode - out.size(), '\0');
  return out;
}

std::string superblock(std::size_t inodes, std::size_t blocks) {
  std::string out;
  put(out, kMagic, 4);
  put(out, 0, 4);    // no checksum: the file is ours
  put(out, 0x2, 4);  // inodes have times of their own
  put(out, 12, 1);
  put(out, 0, 1);
  put(out, kInode / kInodeUnit, 2);  // the root is the first inode
  put(out, inodes, 8);
  put(out, 0, 8);  // epoch and fraction: inodes have their own
  put(out, 0, 4);
  put(out, blocks, 4);
  put(out, 1, 4);  // inodes begin at block 1
  out.append(128 - out.size(), '\0');
  return out;
}

}  // namespace

std::string make_directory_image(const std::map<std::string, Entry>& directories) {
  if (directories.size() > kLimit)
    throw failure("there are more than " + std::to_string(kLimit) + " directories whose attributes must be restored");
  std::map<std::string, Directory> tree;
  std::vector<Directory*> order;
  for (const auto& [path, entry] : directories) {
    const std::size_t slash = path.rfind('/');
    const auto parent = tree.find(slash == std::string::npos ? "" : path.substr(0, slash));
    if (!path.empty() && parent == tree.end())
      throw Error(ErrorKind::Internal, "the parent of " + quote(path) + " is missing");
    Directory& made = tree[path];
    made = {.attributes = &entry,
            .name = slash == std::string::npos ? path : path.substr(slash + 1),
            .parent = path.empty() ? nullptr : &parent->second,
            .xattrs = stored_xattrs(entry)};
    if (made.parent) made.parent->children.push_back(&made);
    order.push_back(&made);
  }
  if (order.empty() || order.front()->parent) throw Error(ErrorKind::Internal, "the root is missing");

  // Addresses first: entries name inodes, and inodes name blocks. An inode never crosses a block.
  // The first place stays empty, so that no inode has the number 0.
  std::size_t at = kInode;
  for (Directory* directory : order) {
    at = (at + kInode - 1) / kInode * kInode;
    directory->nid = at / kInodeUnit;
    at += kInode + directory->xattrs.size();
  }
  std::size_t block = 1 + (at + kBlock - 1) / kBlock;
  for (Directory* directory : order) {
    directory->entries = stored_entries(*directory);
    directory->block = static_cast<std::uint32_t>(block);
    block += (directory->entries.size() + kBlock - 1) / kBlock;
  }

  std::string image(1024, '\0');
  image += superblock(order.size(), block);
  pad(image, kBlock);
  image.append(kInode, '\0');
  for (std::size_t i = 0; i < order.size(); ++i) {
    pad(image, kInode);
    image += stored_inode(*order[i], static_cast<std::uint32_t>(i + 1)) + order[i]->xattrs;
  }
  pad(image, kBlock);
  for (const Directory* directory : order) {
    image += directory->entries;
    pad(image, kBlock);
  }
  return image;
}

}  // namespace dsec::layers
