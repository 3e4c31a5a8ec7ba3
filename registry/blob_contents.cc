#include "registry/blob_contents.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include "core/base/files.h"
#include "core/base/units.h"
#include "registry/directory/file_copy.h"
#include "registry/registry.h"
#include "registry/store/local_store.h"

namespace dsec::registry {
namespace {

using Advance = std::function<void(std::uint64_t)>;

class StoreContents : public BlobContents {
 public:
  explicit StoreContents(LocalStore& store) : store_(store) {}

  UniqueFd open(const Blob& blob) override {
    return open_file(store_.blob_path(blob.digest), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  }
  Digest copy(const Blob& blob, int to, const Advance& advance) override {
    const UniqueFd source = open(blob);
    return copy_exactly(source.get(), to, blob.size, advance);
  }
  Error damaged(const Digest& found) const override {
    return failure("the store's copy is damaged: its bytes have " + found.str())
        .hint("dsec layer verify, then import or pull the layer again");
  }

 private:
  LocalStore& store_;
};

class RegistryContents : public BlobContents {
 public:
  RegistryContents(Registry& registry, std::filesystem::path spool, Progress& progress)
      : registry_(registry), spool_(std::move(spool)), progress_(progress) {}

  UniqueFd open(const Blob& blob) override {
    if (UniqueFd file = registry_.open_file(blob)) return file;
    check_space(blob);
    TempFile file(spool_);
    const std::string step = "fetch blob " + blob.digest.brief();
    progress_.begin(step);
    const Digest found = copy(blob, file.fd(), [&](std::uint64_t done) { progress_.advance(step, done, blob.size); });
    if (found != blob.digest) throw damaged(found);
    progress_.end(step, format_size(blob.size));
    // The name goes with `file`; the bytes stay for as long as they are open.
    UniqueFd kept(::fcntl(file.fd(), F_DUPFD_CLOEXEC, 0));
    if (!kept) throw system_error("duplicate a descriptor");
    return kept;
  }
  Digest copy(const Blob& blob, int to, const Advance& advance) override {
    return registry_.copy_blob(blob, to, advance);
  }
  Error damaged(const Digest& found) const override {
    return failure("the copy of registry " + registry_.address().shown() + " is damaged: its bytes have " + found.str())
        .hint("dsec registry check, which finds all such files");
  }

 private:
  void check_space(const Blob& blob) const {
    struct statvfs space;
    if (::statvfs(spool_.c_str(), &space) != 0) throw system_error("statvfs of " + quote(spool_.native()));
    if (const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize; blob.size > free)
      throw failure("it needs " + format_size(blob.size) + " on its way, and " + quote(spool_.native()) + " has " +
                    format_size(free) + " left");
  }

  Registry& registry_;
  const std::filesystem::path spool_;
  Progress& progress_;
};

}  // namespace

std::unique_ptr<BlobContents> contents_of(LocalStore& store) { return std::make_unique<StoreContents>(store); }

std::unique_ptr<BlobContents> contents_of(Registry& registry, std::filesystem::path spool, Progress& progress) {
  return std::make_unique<RegistryContents>(registry, std::move(spool), progress);
}

}  // namespace dsec::registry
