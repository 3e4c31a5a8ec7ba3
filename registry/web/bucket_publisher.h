#pragma once

#include "registry/registry.h"
#include "registry/web/s3_place.h"

namespace dsec::registry {

/// Publishes to a bucket; both must outlive it.
std::unique_ptr<Publisher> publish_to_bucket(const S3Place& place, LocalStore& store);

}  // namespace dsec::registry
