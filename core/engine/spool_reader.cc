#include "core/engine/spool_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/base/spool_record.h"

namespace dsec::engine {
namespace {

// The next record of one file.
class PartReader {
 public:
  PartReader(const SpoolPart& part, bool head) : part_(part), head_(head) { advance(); }

  bool done() const { return !valid_; }
  bool is_head() const { return head_; }
  const SpoolRecord& record() const { return record_; }
  const std::string& data() const { return data_; }

  void advance() {
    valid_ = false;
    if (at_ + sizeof record_ > part_.size || !read(&record_, sizeof record_)) return;
    if (record_.length > part_.size - at_ || record_.stream < 1 || record_.stream > 2) return;
    data_.resize(record_.length);
    valid_ = read(data_.data(), data_.size());
  }

 private:
  bool read(void* to, std::size_t size) {
    const ssize_t got = ::pread(part_.file.get(), to, size, static_cast<off_t>(at_));
    at_ += size;
    return got == static_cast<ssize_t>(size);
  }

  const SpoolPart& part_;
  bool head_, valid_ = false;
  std::uint64_t at_ = 0;
  SpoolRecord record_ = {};
  std::string data_;
};

std::chrono::system_clock::time_point time_of(const SpoolRecord& record) {
  return std::chrono::system_clock::time_point(std::chrono::microseconds(record.time_us));
}

}  // namespace

void read_spool(std::span<const SpoolPart> parts, const std::uint64_t (&dropped)[2], const SpoolSink& sink) {
  std::vector<PartReader> readers;
  readers.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) readers.emplace_back(parts[i], i == 0);
  bool marked[2] = {};
  for (;;) {
    PartReader* earliest = nullptr;
    for (PartReader& reader : readers)
      if (!reader.done() && (!earliest || reader.record().time_us < earliest->record().time_us)) earliest = &reader;
    if (!earliest) break;
    const SpoolRecord& record = earliest->record();
    const unsigned stream = record.stream - 1;
    if (!earliest->is_head() && dropped[stream] && !marked[stream]) {
      marked[stream] = true;
      sink(stream, time_of(record), "\n[dsec: " + std::to_string(dropped[stream]) + " bytes dropped here]\n");
    }
    sink(stream, time_of(record), earliest->data());
    earliest->advance();
  }
}

std::vector<SpoolPart> open_spool(const std::filesystem::path& directory, const std::string& exec_id) {
  const auto open_part = [&](const char* suffix) -> std::optional<SpoolPart> {
    const std::filesystem::path path = directory / "spool" / (exec_id + suffix);
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file && errno == ENOENT) return std::nullopt;
    struct stat info = {};
    if (!file || ::fstat(file.get(), &info) != 0) throw system_error("open " + quote(path.native()));
    return SpoolPart{std::move(file), static_cast<std::uint64_t>(info.st_size)};
  };
  std::vector<SpoolPart> parts;
  // read_spool takes the first for the head; a stream that began in a tail has an empty one.
  for (const char* suffix : {".head", ".1a", ".1b", ".2a", ".2b"})
    if (auto part = open_part(suffix)) parts.push_back(std::move(*part));
  return parts;
}

}  // namespace dsec::engine
