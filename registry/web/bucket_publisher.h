#pragma once

#include "registry/registry.h"
#include "registry/web/s3_place.h"

namespace dsec::registry {

/// Publishes to a bucket; place and contents must outlive it.
std::unique_ptr<Publisher> publish_to_bucket(const S3Place& place, BlobContents& contents, const std::string& host_id,
                                             std::set<Digest> announced);

}  // namespace dsec::registry
