#include "registry/layout/publisher_lease.h"

#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/engine/lease.h"
#include "core/engine/sandbox_id.h"
#include "registry/directory/three_fs.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace {

using std::chrono::system_clock;

constexpr int kSchema = 1;
// Long enough for clocks of hosts that differ and for one large blob; a dead publisher on another host keeps what it
// named for as long.
constexpr std::chrono::seconds kLifetime{3600}, kRenewal{600};
// Publishers wait for who removes, also for one that was killed on another host.
constexpr std::chrono::seconds kRemoval{600}, kRemovalRenewal{60};
constexpr std::chrono::milliseconds kLookAgain{100};
// One that is being replaced, or whose server is short of breath, can be read a little later.
constexpr std::chrono::seconds kUnreadable{10};

// A client of 3FS may show a lease as it was a while ago, and what was removed there stays readable for a while. No
// lease may seem to have run out to anybody while its owner goes on with it, and none may run out before what is
// removed under it has gone for everybody.
static_assert(kRenewal + kThreeFsKnowsName < kLifetime && kRemovalRenewal + kThreeFsKnowsName < kRemoval / 2);
static_assert(kLifetime / 2 > kThreeFsKeepsRemoved + kThreeFsKnowsName &&
              kRemoval > kThreeFsKeepsRemoved + kThreeFsKnowsName);

std::chrono::seconds lifetime(PublisherLease::Work work) {
  return work == PublisherLease::Work::Publishes ? kLifetime : kRemoval;
}
std::chrono::seconds renewal(PublisherLease::Work work) {
  return work == PublisherLease::Work::Publishes ? kRenewal : kRemovalRenewal;
}

// Pids mean something only within one pid namespace.
std::string pid_namespace() {
  struct stat status;
  return ::stat("/proc/self/ns/pid", &status) == 0 ? std::to_string(status.st_ino) : "";
}

std::uint64_t seconds(system_clock::time_point time) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count());
}

FoundLease parse(const std::string& publisher, const std::string& text) {
  const Json json = parse_json(text, lease_name(publisher));
  if (json_u64(json, "schema") != kSchema) throw usage_error("it is of a newer dsec").hint("update dsec");
  FoundLease lease;
  lease.publisher = publisher;
  const engine::ProcessIdentity self = engine::ProcessIdentity::self();
  const engine::ProcessIdentity owner{json_string(json, "boot_id"), static_cast<pid_t>(json_u64(json, "pid")),
                                      json_u64(json, "start_ticks")};
  if (owner.boot_id == self.boot_id && json_string(json, "pid_namespace") == pid_namespace())
    lease.live = owner.alive();
  else
    lease.live = json_u64(json, "expires") > seconds(system_clock::now());
  lease.removes = json.contains("removes") && json["removes"] == true;
  const auto blobs = json.find("blobs");
  if (blobs == json.end() || !blobs->is_array()) throw usage_error("'blobs' is no list");
  for (const Json& blob : *blobs) {
    if (!blob.is_string()) throw usage_error("'blobs' holds something else than digests");
    lease.digests.insert(Digest::parse(blob.get<std::string>()));
  }
  return lease;
}

// Live, unless it is known that its time is over: nothing else tells of it.
FoundLease unreadable_lease(const Notes& notes, const std::string& publisher, const Error& error) {
  FoundLease lease{.publisher = publisher, .live = true, .unreadable = lease_name(publisher) + ": " + error.message()};
  try {
    const auto written = notes.written(lease_name(publisher));
    lease.live = written && system_clock::now() - *written < kLifetime;
  } catch (const Error&) {
    // Its age is not known either.
  }
  return lease;
}

}  // namespace

std::string lease_name(const std::string& publisher) { return std::string(kLeases) + "/" + publisher + ".json"; }

std::chrono::seconds PublisherLease::since_boot() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec);
}

PublisherLease::PublisherLease(const Notes& notes, const std::string& host_id, std::set<Digest> digests, Work work,
                               Clock clock)
    : notes_(notes),
      publisher_(host_id + "-" + engine::random_id(16)),
      digests_(std::move(digests)),
      work_(work),
      clock_(std::move(clock)) {
  write();
}

PublisherLease::~PublisherLease() {
  try {
    notes_.remove(lease_name(publisher_));
  } catch (const Error&) {
    // It runs out by itself.
  }
}

void PublisherLease::renew() {
  if (work_ == Work::Removes && !holds()) lost_ = true;
  if (!lost_ && age() > renewal(work_)) write();
}

bool PublisherLease::holds() const { return !lost_ && age() < lifetime(work_) / 2; }

std::chrono::seconds PublisherLease::age() const { return clock_() - written_; }

void PublisherLease::write() {
  attempt("cannot write a lease in the registry", [&] {
    // Taken before: it may take long until the record is there.
    const std::chrono::seconds now = clock_();
    const engine::ProcessIdentity self = engine::ProcessIdentity::self();
    Json json = {{"schema", kSchema},
                 {"boot_id", self.boot_id},
                 {"pid", self.pid},
                 {"start_ticks", self.start_ticks},
                 {"pid_namespace", pid_namespace()},
                 {"expires", seconds(system_clock::now() + lifetime(work_))},
                 {"blobs", Json::array()}};
    if (work_ == Work::Removes) json["removes"] = true;
    for (const Digest& digest : digests_) json["blobs"].push_back(digest.hex());
    notes_.write(lease_name(publisher_), canonical_json(json) + "\n", publisher_);
    written_ = now;
  });
}

KeptLease::KeptLease(const Notes& notes, const std::string& host_id, std::set<Digest> digests,
                     PublisherLease::Work work, PublisherLease::Clock clock)
    : lease_(notes, host_id, std::move(digests), work, std::move(clock)), keeper_([this, work] {
        std::unique_lock lock(mutex_);
        while (!ended_.wait_for(lock, renewal(work) / 2, [this] { return over_; })) {
          try {
            lease_.renew();
          } catch (const Error&) {
            // There is time to try again.
          }
        }
      }) {}

bool KeptLease::holds() {
  const std::lock_guard lock(mutex_);
  return lease_.holds();
}

void KeptLease::require() {
  if (!holds())
    throw failure("its lease in the registry could not be renewed, so others may have removed what it has put there")
        .hint("publish again: what is there still is not copied");
}

KeptLease::~KeptLease() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_all();
  keeper_.join();
}

std::vector<FoundLease> find_leases(const Notes& notes) {
  std::vector<FoundLease> leases;
  for (const std::string& name : notes.names(kLeases)) {
    constexpr std::string_view kSuffix = ".json";
    const std::string file = last_part(name);
    if (file.starts_with(".tmp-") || !file.ends_with(kSuffix)) continue;
    const std::string publisher = file.substr(0, file.size() - kSuffix.size());
    try {
      if (const auto text = notes.read(name)) leases.push_back(parse(publisher, *text));
    } catch (const Error& error) {
      leases.push_back(unreadable_lease(notes, publisher, error));
    }
  }
  return leases;
}

void wait_for_removers(const Notes& notes, const std::set<Digest>& digests, Progress& progress) {
  std::optional<std::set<std::string>> awaited;  // those who may not have seen the lease
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    std::set<std::string> busy;
    std::string unreadable;
    for (const FoundLease& lease : find_leases(notes)) {
      if (!lease.live || (awaited && !awaited->contains(lease.publisher))) continue;
      if (!lease.unreadable.empty()) unreadable = lease.unreadable;
      const bool removes_any = lease.removes && std::any_of(lease.digests.begin(), lease.digests.end(),
                                                            [&](const Digest& each) { return digests.contains(each); });
      if (removes_any || !lease.unreadable.empty()) busy.insert(lease.publisher);
    }
    if (busy.empty()) return;
    const auto waited = std::chrono::steady_clock::now() - start;
    if (!unreadable.empty() && waited > kUnreadable)
      throw failure("a lease in the registry cannot be read, so that what is being removed there is not known")
          .context(unreadable)
          .hint("again when it can be read; or remove it, once nobody publishes there or runs gc");
    if (!awaited)
      progress.warn(unreadable.empty() ? "waiting for a gc of the registry that removes what is to be published"
                                       : "waiting until a lease can be read, " + unreadable);
    awaited = std::move(busy);
    if (waited > kLifetime)
      throw failure("a gc of the registry does not end").hint("remove its lease, " + lease_name(*awaited->begin()));
    std::this_thread::sleep_for(kLookAgain);
  }
}

std::string publisher_of(std::string_view file) {
  constexpr std::string_view kPrefix = ".tmp-";
  if (!file.starts_with(kPrefix)) return {};
  file.remove_prefix(kPrefix.size());
  const std::size_t last = file.rfind('-');
  return last == std::string_view::npos ? std::string() : std::string(file.substr(0, last));
}

}  // namespace dsec::registry
