#pragma once

#include "registry/layout/notes.h"
#include "registry/web/s3_place.h"

namespace dsec::registry {

/// The notes of a registry in a bucket, which must outlive them.
class BucketNotes : public Notes {
 public:
  explicit BucketNotes(const S3Place& place) : place_(place) {}

  std::vector<std::string> names(std::string_view folder) const override;
  std::optional<std::string> read(const std::string& name) const override;
  void write(const std::string& name, const std::string& text, const std::string& author) const override;
  void remove(const std::string& name) const override;
  std::optional<std::chrono::system_clock::time_point> written(const std::string& name) const override;

 private:
  const S3Place& place_;
};

}  // namespace dsec::registry
