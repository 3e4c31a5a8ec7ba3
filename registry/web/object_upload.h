#pragma once

#include <string>
#include <vector>

#include "registry/web/s3_place.h"

namespace dsec::registry {

/// One object on its way to a bucket in parts (CreateMultipartUpload and what follows it). Until its end nothing is to
/// be seen of it; when it fails it is aborted.
class ObjectUpload {
 public:
  ObjectUpload(const S3Place& place, const std::string& name, std::uint64_t part_bytes);

  /// False when the object exists and was kept. Throws Error.
  bool run(const ObjectContent& content, bool keep, const std::function<void(std::uint64_t)>& advance);

 private:
  void begin();
  struct Part {
    std::size_t number;  ///< from 1
    std::uint64_t offset, length;
  };
  /// Returns what the server calls the part.
  std::string send_part(const ObjectContent& content, const Part& part,
                        const std::function<void(std::uint64_t)>& advance) const;
  /// Several at once; returns their names in order. Throws Error when one fails, or the whole has another digest.
  std::vector<std::string> send_parts(const ObjectContent& content,
                                      const std::function<void(std::uint64_t)>& advance) const;
  bool complete(const std::vector<std::string>& parts, bool keep, std::uint64_t size) const;
  void abort() const noexcept;

  const S3Place& place_;
  const std::string name_;
  const std::uint64_t part_bytes_;
  std::string id_;
};

/// That the file is not what it is named after.
Error wrong_content(const ObjectContent& content, const Digest& found);

}  // namespace dsec::registry
