#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "registry/directory/registry_root.h"

namespace dsec::registry {

/// A publisher's record leases/<host>-<random>.json: which blobs it is about to refer to. Written before it looks
/// whether they are there, so that nobody's repair takes them away meanwhile. Other hosts judge it by its time,
/// processes of this boot by whether the publisher lives.
class PublisherLease {
 public:
  PublisherLease(const RegistryRoot& root, const std::string& host_id, std::set<Digest> blobs);
  PublisherLease(const PublisherLease&) = delete;
  /// Removes the record.
  ~PublisherLease();
  /// What the publisher's temporary files are named after.
  const std::string& publisher() const noexcept { return publisher_; }
  /// Writes the record anew once a good part of its time has passed.
  void renew();

 private:
  void write();
  const RegistryRoot& root_;
  std::string publisher_;
  std::set<Digest> blobs_;
  std::chrono::steady_clock::time_point written_;
};

/// A lease as found.
struct FoundLease {
  std::string publisher;
  bool live = false;
  std::set<Digest> blobs;
};
/// All leases; one that cannot be read counts as live while it is younger than a lease's time, and holds nothing.
std::vector<FoundLease> find_leases(const RegistryRoot& root);

/// The publisher that a temporary file is named after; empty when the name is of another form.
std::string publisher_of(std::string_view file);

}  // namespace dsec::registry
