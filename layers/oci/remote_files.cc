#include "layers/oci/remote_files.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_source.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

// As docker has it; registries slow down or refuse who opens many more.
constexpr std::size_t kAtOnce = 3;

}  // namespace

class RemoteFiles::Downloads {
 public:
  Downloads(engine::RemoteImage& image, fs::path spool, Progress& progress)
      : image_(image), spool_(std::move(spool)), progress_(progress), step_("download " + image.name()) {}

  ~Downloads() {
    {
      const std::lock_guard guard(mutex_);
      ended_ = true;
      waiting_.clear();
      more_.notify_all();
      if (running_ > 0) image_.cancel();
    }
    for (std::thread& thread : threads_) thread.join();
    if (total_ > 0 && done_ == total_) progress_.end(step_, format_size(done_));
  }

  FileSpan document(BlobUse use, const Digest& digest) {
    const std::string bytes = use == BlobUse::Manifest ? image_.manifest(digest) : image_.document(digest);
    UniqueFd file = unlinked_file(spool_);
    write_all(file.get(), bytes);
    return {std::make_shared<const UniqueFd>(std::move(file)), 0, bytes.size()};
  }

  FileSpan layer(const Digest& digest, std::uint64_t size) {
    const std::lock_guard guard(mutex_);
    if (const auto known = layers_.find(digest); known != layers_.end()) {
      if (known->second.size != size)
        throw refusal(Refusal::SizeMismatch, "the manifest gives two sizes for layer " + digest.str());
      return known->second;
    }
    check_space(size);
    const FileSpan span{std::make_shared<const UniqueFd>(unlinked_file(spool_)), 0, size, std::make_shared<Arrival>()};
    layers_.emplace(digest, span);
    if (total_ == 0) progress_.begin(step_);
    total_ += size;
    waiting_.push_back({digest, span});
    more_.notify_one();
    if (threads_.size() < kAtOnce) threads_.emplace_back([this] { work(); });
    return span;
  }

 private:
  struct Job {
    Digest digest;
    FileSpan span;
  };

  void check_space(std::uint64_t size) const {
    struct statvfs space;
    if (::statvfs(spool_.c_str(), &space) != 0) throw system_error("statvfs " + quote(spool_.native()));
    const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
    const std::uint64_t missing = total_ - done_;
    if (size > free || missing > free - size)
      throw failure("its layers need " + format_size(missing + size) + " more, and " + quote(spool_.native()) +
                    " has " + format_size(free) + " left")
          .hint("dsec gc, or more space there");
  }

  void work() {
    for (;;) {
      std::optional<Job> job;
      {
        std::unique_lock lock(mutex_);
        more_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
        if (ended_) return;
        job = std::move(waiting_.front());
        waiting_.pop_front();
        ++running_;
      }
      fetch(*job);
      const std::lock_guard guard(mutex_);
      --running_;
    }
  }

  /// Writes into the file of a span, and tells who reads it.
  class Spooled : public engine::RemoteImage::Sink {
   public:
    Spooled(Downloads& downloads, const FileSpan& span) : downloads_(downloads), span_(span) {}
    void piece(std::string_view bytes) override {
      write_all(span_.file->get(), bytes);
      written_ += bytes.size();
      span_.arrival->advance(written_);
      downloads_.count(bytes.size());
    }
    // The file keeps its length until it is written over: a reader of what was there must not find it shorter.
    void anew() override {
      span_.arrival->begin_anew();
      if (::lseek(span_.file->get(), 0, SEEK_SET) != 0) throw system_error("seek");
      downloads_.forget(std::exchange(written_, 0));
    }

   private:
    Downloads& downloads_;
    const FileSpan& span_;
    std::uint64_t written_ = 0;
  };

  void fetch(const Job& job) {
    try {
      Spooled spooled(*this, job.span);
      image_.fetch(job.digest, job.span.size, spooled);
      job.span.arrival->finish();
    } catch (const Error& error) {
      job.span.arrival->fail(error);
    } catch (const std::exception& error) {
      job.span.arrival->fail(failure(error.what()));
    }
  }

  void count(std::uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    done_ += bytes;
    progress_.advance(step_, done_, total_);
  }
  void forget(std::uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    done_ -= bytes;
  }

  engine::RemoteImage& image_;
  const fs::path spool_;
  Progress& progress_;
  const std::string step_;
  std::mutex mutex_;
  std::condition_variable more_;
  bool ended_ = false;
  int running_ = 0;
  std::deque<Job> waiting_;
  std::map<Digest, FileSpan> layers_;
  std::uint64_t total_ = 0, done_ = 0;
  std::vector<std::thread> threads_;
};

RemoteFiles::RemoteFiles(engine::RemoteImage& image, fs::path spool, Progress& progress)
    : downloads_(std::make_unique<Downloads>(image, std::move(spool), progress)) {}

RemoteFiles::~RemoteFiles() = default;

std::optional<FileSpan> RemoteFiles::blob(BlobUse use, const Digest& digest, std::uint64_t size) const {
  return use == BlobUse::Layer ? downloads_->layer(digest, size) : downloads_->document(use, digest);
}

}  // namespace dsec::layers
