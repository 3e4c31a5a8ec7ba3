#include "registry/web/bucket_notes.h"

namespace dsec::registry {

std::vector<std::string> BucketNotes::names(std::string_view folder) const {
  return place_.names(std::string(folder) + "/");
}

std::optional<std::string> BucketNotes::read(const std::string& name) const {
  return place_.read_file(name, kLargestNote, NamedFiles::Missing::Possible);
}

void BucketNotes::write(const std::string& name, const std::string& text, const std::string&) const {
  place_.put(name, {text, -1, text.size(), {}}, S3Place::Existing::Replace, {});
}

std::optional<std::chrono::system_clock::time_point> BucketNotes::written(const std::string& name) const {
  return place_.modified(name);
}

void BucketNotes::remove(const std::string& name) const { place_.remove(name); }

}  // namespace dsec::registry
