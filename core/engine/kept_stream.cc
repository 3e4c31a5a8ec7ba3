#include "core/engine/kept_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/spool_record.h"

namespace dsec::engine {
namespace {

UniqueFd make_file(const std::filesystem::path& path) {
  return open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
}

void flush(int file, const std::filesystem::path& path) {
  if (::fdatasync(file) != 0) throw system_error("flush " + quote(path.native()));
  sync_directory(path.parent_path());
}

}  // namespace

KeptStream::KeptStream(std::filesystem::path trajectory, std::uint64_t seq, std::uint64_t limit)
    : trajectory_(std::move(trajectory)), name_(std::to_string(seq) + ".head"), limit_(limit) {}

KeptStream::~KeptStream() {
  if (file_ && !named_) ::unlink((trajectory_ / name_).c_str());
}

void KeptStream::add(std::string_view part) {
  bytes_ += part.size();
  if (trajectory_.empty() || kept_ == limit_ || failed_) return;
  try {
    keep(part);
  } catch (const Error& error) {
    // What was asked for goes on; a full disk has room again, for the record of its end.
    failed_ = error;
    inline_.clear();
    kept_ = 0;
    file_.reset();
    ::unlink((trajectory_ / name_).c_str());
  }
}

void KeptStream::keep(std::string_view part) {
  part = part.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), limit_ - kept_)));
  kept_ += part.size();
  if (!file_ && kept_ <= kInlineStream) {
    inline_ += part;
    return;
  }
  if (!file_) {
    file_ = make_file(trajectory_ / name_);
    if (!inline_.empty()) append(inline_);
    inline_.clear();
  }
  append(part);
}

void KeptStream::append(std::string_view part) {
  using namespace std::chrono;
  const auto now = duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
  constexpr std::uint32_t kStdout = 1;
  const SpoolRecord record{static_cast<std::uint64_t>(now), static_cast<std::uint32_t>(part.size()), kStdout};
  write_all(file_.get(), {reinterpret_cast<const char*>(&record), sizeof record});
  write_all(file_.get(), part);
  file_bytes_ += sizeof record + part.size();
}

void KeptStream::finish(Operation::Done& done, bool durable) {
  if (failed_ && durable) throw *failed_;
  if (!file_) {
    done.stdout_data = std::move(inline_);
    return;
  }
  if (durable) flush(file_.get(), trajectory_ / name_);
  done.output = {{name_, file_bytes_}};
  named_ = true;
}

void keep_input(const std::filesystem::path& trajectory, std::uint64_t seq, std::string_view input, std::uint64_t limit,
                Operation::Done& done, bool durable) {
  if (trajectory.empty() || input.size() > limit) return;
  if (input.size() <= kInlineStream) {
    done.stdin_data = input;
    return;
  }
  const std::string name = std::to_string(seq) + ".stdin";
  try {
    const UniqueFd file = make_file(trajectory / name);
    write_all(file.get(), input);
    if (durable) flush(file.get(), trajectory / name);
  } catch (const Error&) {
    ::unlink((trajectory / name).c_str());
    if (durable) throw;
    return;
  }
  done.stdin_file = Operation::Part{name, input.size()};
}

}  // namespace dsec::engine
