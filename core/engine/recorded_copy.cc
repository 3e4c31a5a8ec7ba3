#include "core/engine/recorded_copy.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"

namespace dsec::engine {
namespace {

enum class Keep { Nothing, Digest, Content };

/// Passes a stream on, and keeps what passes.
class StreamTee {
 public:
  /// What is kept appears in `directory` under `name`; unless it `must`, a full disk only keeps it from being kept.
  StreamTee(std::filesystem::path directory, const std::string& name, Keep keep, bool must = true)
      : directory_(std::move(directory)), name_(name), keep_(keep), must_(must) {
    if (keep_ == Keep::Content)
      or_drop([&] { file_ = open_file(directory_ / name_, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600); });
  }

  /// To the end of `from`; with `to` < 0 nowhere. Throws Error.
  void pass(int from, int to) {
    std::vector<char> buffer(256u << 10);
    for (;;) {
      const ssize_t got = ::read(from, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error("read the stream");
      if (got == 0) return;
      const std::string_view part(buffer.data(), static_cast<std::size_t>(got));
      bytes_ += part.size();
      if (keep_ != Keep::Nothing) hash_.update(part);
      keep(part);
      if (to >= 0) write_all(to, part);
    }
  }

  std::uint64_t bytes() const { return bytes_; }

  /// With its bytes on the disk when `durable`.
  Operation::Content finish(bool durable) {
    Operation::Content content{"", bytes_, hash_.finish().hex()};
    if (!file_) return content;
    if (durable && ::fdatasync(file_.get()) != 0) throw system_error("flush " + quote((directory_ / name_).native()));
    if (durable) sync_directory(directory_);
    content.name = name_;
    return content;
  }

 private:
  void keep(std::string_view part) {
    if (!file_) return;
    if (bytes_ <= kKeptContent) return or_drop([&] { write_all(file_.get(), part); });
    drop();
  }
  template <typename Work>
  void or_drop(Work&& work) {
    try {
      work();
    } catch (const Error&) {
      drop();
      if (must_) throw;
    }
  }
  void drop() {
    file_.reset();
    ::unlink((directory_ / name_).c_str());
  }

  const std::filesystem::path directory_;
  const std::string name_;
  const Keep keep_;
  const bool must_;
  UniqueFd file_;
  std::uint64_t bytes_ = 0;
  Sha256 hash_;
};

bool is_broken_pipe(const std::exception_ptr& failed) {
  try {
    std::rethrow_exception(failed);
  } catch (const Error& error) {
    return error.chain().back().ends_with("(EPIPE)");
  } catch (...) {
    return false;
  }
}

/// From `write` through a pipe to `read`; one of them is run in a thread of its own. Of two failures the one that
/// caused the other is thrown: when the reader has gone, whatever happens to the writer is its doing.
void through_pipe(const std::function<void(int)>& write, const std::function<void(int)>& read) {
  auto [reading, writing] = make_pipe();
  std::exception_ptr write_failed, read_failed;
  std::thread writer([&write, &write_failed, fd = std::move(writing)]() mutable {
    // When nobody reads any more, that is an error to tell, not the end of dsec.
    sigset_t pipe_signal;
    ::sigemptyset(&pipe_signal);
    ::sigaddset(&pipe_signal, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
    try {
      write(fd.get());
    } catch (...) {
      write_failed = std::current_exception();
    }
    fd.reset();
  });
  try {
    read(reading.get());
  } catch (...) {
    read_failed = std::current_exception();
  }
  reading.reset();
  writer.join();
  if (write_failed && !(read_failed && is_broken_pipe(write_failed))) std::rethrow_exception(write_failed);
  if (read_failed) std::rethrow_exception(read_failed);
}

std::string request_of(const std::string& path) { return canonical_json({{"path", json_bytes(path)}}); }

std::string file_of(std::uint64_t seq) { return std::to_string(seq) + ".tar"; }

}  // namespace

void record_copy_in(const RecordingPlace& place, const std::string& path, int from, const OperationContext& context,
                    const std::function<void(int from)>& copy) {
  bool copied = false;
  const auto work = [&](std::uint64_t seq, Operation::Done& done) {
    copied = true;
    if (!seq) return copy(from);
    const bool named = !context.op_id.empty();
    StreamTee tee(place.trajectory, file_of(seq), Keep::Content, named);
    through_pipe([&](int to) { tee.pass(from, to); }, copy);
    done.content = tee.finish(named);
    done.result = canonical_json({{"bytes", done.content->bytes}, {"sha256", done.content->sha256}});
  };
  const Operation operation = record_operation(place, {"write", request_of(path), context}, work);
  if (copied) return;
  StreamTee tee(place.trajectory, "", Keep::Digest);
  tee.pass(from, -1);
  if (operation.done->content && tee.finish(false).sha256 != operation.done->content->sha256)
    throw usage_error("the files are others than those of then")
        .context("operation " + quote(context.op_id) + " was another request")
        .hint("give each request an op-id of its own");
}

void record_copy_out(const RecordingPlace& place, const std::string& path, int to, const OperationContext& context,
                     const std::function<void(int to)>& copy) {
  bool copied = false;
  const auto work = [&](std::uint64_t seq, Operation::Done& done) {
    copied = true;
    if (!seq) return copy(to);
    // Without a name nobody asks for it again.
    const bool named = !context.op_id.empty();
    StreamTee tee(place.trajectory, file_of(seq), named ? Keep::Content : Keep::Nothing);
    through_pipe(copy, [&](int from) { tee.pass(from, to); });
    if (named) done.content = tee.finish(true);
    done.result = canonical_json({{"bytes", tee.bytes()}});
  };
  const Operation operation = record_operation(place, {"read", request_of(path), context}, work);
  if (copied) return;
  const UniqueFd kept = Trajectory{place.trajectory, {}, {}, {}}.content(operation);
  if (!kept)
    throw failure("more than " + std::to_string(kKeptContent >> 20) + " MiB of a copy are not kept")
        .context("cannot give the files of operation " + quote(context.op_id) + " again")
        .hint("copy them under another op-id");
  StreamTee("", "", Keep::Nothing).pass(kept.get(), to);
}

}  // namespace dsec::engine
