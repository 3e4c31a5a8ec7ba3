#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/digest.h"
#include "core/base/progress.h"
#include "registry/layout/notes.h"

namespace dsec::registry {

/// A record leases/<host>-<random>.json of who works on a registry, and on which blobs and layers. A publisher names
/// what it is about to refer to, and writes that before it looks whether it is there: so nobody who removes things
/// takes it away meanwhile. Who removes names what is going to go, and writes that before reading the publishers'
/// leases. Other hosts judge a lease by its time, processes of this boot by whether its writer lives.
class PublisherLease {
 public:
  enum class Work { Publishes, Removes };
  /// Seconds since boot, also while the machine slept.
  using Clock = std::function<std::chrono::seconds()>;
  static std::chrono::seconds since_boot();
  /// `notes` must outlive it. Throws Error.
  PublisherLease(const Notes& notes, const std::string& host_id, std::set<Digest> digests, Work work = Work::Publishes,
                 Clock clock = since_boot);
  PublisherLease(const PublisherLease&) = delete;
  /// Removes the record.
  ~PublisherLease();
  /// What the publisher's temporary files are named after.
  const std::string& publisher() const noexcept { return publisher_; }
  /// Writes the record anew once a good part of its time has passed.
  void renew();
  /// Whether others respect it for long enough still that what was begun can be ended, however their clocks differ.
  /// Once lost, since we were stopped for long, the lease of who removes does not come back.
  bool holds() const;

 private:
  void write();
  std::chrono::seconds age() const;
  const Notes& notes_;
  const std::string publisher_;
  const std::set<Digest> digests_;
  const Work work_;
  const Clock clock_;
  std::chrono::seconds written_{};
  bool lost_ = false;
};

/// A lease that a thread renews, for work that does not come by to do so.
class KeptLease {
 public:
  KeptLease(const Notes& notes, const std::string& host_id, std::set<Digest> digests,
            PublisherLease::Work work = PublisherLease::Work::Publishes,
            PublisherLease::Clock clock = PublisherLease::since_boot);
  KeptLease(const KeptLease&) = delete;
  ~KeptLease();
  bool holds();
  /// Before something is named that others may have removed by now. Throws Error when the lease does not hold.
  void require();
  const std::string& publisher() const noexcept { return lease_.publisher(); }

 private:
  PublisherLease lease_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread keeper_;
};

/// A lease as found.
struct FoundLease {
  std::string publisher;
  bool live = false;
  std::set<Digest> digests;
  bool removes = false;  ///< what it names is about to go
  /// Why it cannot be read; empty for one that can. What it names, and for what purpose, is not known then.
  std::string unreadable = {};
};
/// All leases; one that cannot be read counts as live unless it is known to be older than a lease's time.
std::vector<FoundLease> find_leases(const Notes& notes);
/// Where the lease of a publisher lies.
std::string lease_name(const std::string& publisher);

/// Called by a publisher that has written its lease: returns once nobody removes any of `digests` who cannot have seen
/// that lease. Throws Error when that takes longer than a lease lasts, or when a lease stays unreadable.
void wait_for_removers(const Notes& notes, const std::set<Digest>& digests, Progress& progress);

/// The publisher that a temporary file is named after; empty when the name is of another form.
std::string publisher_of(std::string_view file);

}  // namespace dsec::registry
