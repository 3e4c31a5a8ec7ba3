#include "registry/loader/shared_state.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "core/base/error.h"
#include "registry/store/chunk_digests.h"

namespace dsec::registry {
namespace {

constexpr char kMagic[8] = {'d', 's', 'e', 'c', 'l', 'o', 'a', 'd'};
constexpr unsigned kInodeBits = 20;
static_assert(SharedState::kFirstInode + SharedState::kNodes <= 1u << kInodeBits);

}  // namespace

struct SharedState::Layout {
  struct Head {
    char magic[8];
    std::uint32_t version;
    std::uint32_t reserved;
    char instance[16];
  } head;
  std::atomic<std::uint64_t> flags;
  struct Node {
    std::atomic<std::uint32_t> used;  ///< set last
    std::uint32_t reserved;
    char name[2 * kRawDigestSize];  ///< digests of blob and chunks
    std::atomic<std::uint64_t> fetched;
  } nodes[kNodes];
  std::atomic<std::uint64_t> handles[kHandles];
  alignas(4096) char slots[kSlots][kSlotSize];
};

UniqueFd SharedState::make(const std::string& instance) {
  UniqueFd memory(::memfd_create("dsec-loader", MFD_CLOEXEC));
  if (!memory || ::ftruncate(memory.get(), sizeof(Layout)) != 0) throw system_error("make a file in memory");
  Layout::Head head{};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.version = kVersion;
  std::memcpy(head.instance, instance.data(), std::min(instance.size(), sizeof head.instance));
  if (::pwrite(memory.get(), &head, sizeof head, 0) < 0) throw system_error("write a file in memory");
  return memory;
}

bool SharedState::fits(int memory) {
  struct stat status {};
  Layout::Head head{};
  return ::fstat(memory, &status) == 0 && status.st_size == static_cast<off_t>(sizeof(Layout)) &&
         ::pread(memory, &head, sizeof head, 0) == sizeof head && std::memcmp(head.magic, kMagic, sizeof kMagic) == 0 &&
         head.version == kVersion;
}

SharedState::SharedState(const UniqueFd& memory) {
  if (!fits(memory.get()))
    throw failure("the holder's memory is that of another release").hint("dsec gc, when no sandbox uses it any longer");
  void* const place = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (place == MAP_FAILED) throw system_error("map the holder's memory");
  layout_ = static_cast<Layout*>(place);
  instance_.assign(layout_->head.instance, ::strnlen(layout_->head.instance, sizeof layout_->head.instance));
  for (auto& slot : layout_->slots) {
    std::uint32_t length = 0;
    std::memcpy(&length, slot, sizeof length);
    if (length == 0) free_.push_back(slot);
  }
  for (const Layout::Node& node : layout_->nodes) {
    if (node.used.load() == 0) break;
    inodes_.emplace(std::string(node.name, sizeof node.name), kFirstInode + inodes_.size());
  }
}

SharedState::~SharedState() { ::munmap(layout_, sizeof(Layout)); }

std::uint64_t SharedState::flags() const noexcept { return layout_->flags.load(); }
void SharedState::set_flags(std::uint64_t flags) noexcept { layout_->flags.store(flags); }

char* SharedState::take_slot() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [&] { return !free_.empty(); });
  char* const slot = free_.back();
  free_.pop_back();
  return slot;
}

void SharedState::free_slot(char* slot) {
  std::memset(slot, 0, sizeof(std::uint32_t));
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }
  freed_.notify_one();
}

std::vector<char*> SharedState::slots_under_way() {
  const std::lock_guard lock(mutex_);
  std::vector<char*> slots;
  for (auto& slot : layout_->slots)
    if (std::find(free_.begin(), free_.end(), slot) == free_.end()) slots.push_back(slot);
  return slots;
}

std::optional<std::uint64_t> SharedState::inode_of(const ServedName& blob) {
  const std::string raw = raw_digest(blob.blob) + raw_digest(blob.chunks);
  const std::lock_guard lock(mutex_);
  if (const auto known = inodes_.find(raw); known != inodes_.end()) return known->second;
  if (inodes_.size() == kNodes) return std::nullopt;
  const std::uint64_t inode = kFirstInode + inodes_.size();
  Layout::Node& node = layout_->nodes[inode - kFirstInode];
  std::memcpy(node.name, raw.data(), raw.size());
  node.used.store(1);
  inodes_.emplace(raw, inode);
  return inode;
}

std::optional<ServedName> SharedState::blob_of(std::uint64_t inode) const {
  if (inode < kFirstInode || inode - kFirstInode >= kNodes) return std::nullopt;
  const Layout::Node& node = layout_->nodes[inode - kFirstInode];
  if (node.used.load() == 0) return std::nullopt;
  return ServedName{digest_from_raw({node.name, kRawDigestSize}),
                    digest_from_raw({node.name + kRawDigestSize, kRawDigestSize})};
}

std::uint64_t SharedState::handle_for(std::uint64_t unique, std::uint64_t inode) noexcept {
  return unique << kInodeBits | inode;
}

bool SharedState::is_open(std::uint64_t inode) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(std::begin(layout_->handles), std::end(layout_->handles), [&](const auto& each) {
    const std::uint64_t handle = each.load();
    return handle != 0 && (handle & ((1u << kInodeBits) - 1)) == inode;
  });
}

bool SharedState::add_handle(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  std::atomic<std::uint64_t>* place = nullptr;
  for (auto& each : layout_->handles) {
    if (each.load() == handle) return true;
    if (!place && each.load() == 0) place = &each;
  }
  if (place) place->store(handle);
  return place != nullptr;
}

void SharedState::drop_handle(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  for (auto& each : layout_->handles)
    if (each.load() == handle) each.store(0);
}

std::size_t SharedState::handles() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(std::begin(layout_->handles), std::end(layout_->handles),
                                                [](const auto& each) { return each.load() != 0; }));
}

void SharedState::add_fetched(std::uint64_t inode, std::uint64_t bytes) {
  layout_->nodes[inode - kFirstInode].fetched += bytes;
}

std::uint64_t SharedState::fetched(std::uint64_t inode) const {
  return layout_->nodes[inode - kFirstInode].fetched.load();
}

std::uint64_t SharedState::place_of_fetched(std::uint64_t inode) noexcept {
  return offsetof(Layout, nodes) + (inode - kFirstInode) * sizeof(Layout::Node) + offsetof(Layout::Node, fetched);
}

std::vector<std::uint64_t> SharedState::inodes() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> inodes(inodes_.size());
  std::iota(inodes.begin(), inodes.end(), kFirstInode);
  return inodes;
}

}  // namespace dsec::registry
