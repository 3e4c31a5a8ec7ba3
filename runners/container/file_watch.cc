#include "runners/container/file_watch.h"

#include <fcntl.h>
#include <linux/limits.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "runners/container/beneath.h"

// The sandbox may change anything at any moment, and may want to harm. So every directory is opened by its name in its
// parent, never through a link, and watched by its descriptor: what is watched lies in the sandbox, whatever the paths
// mean by then. Paths are what we believe of renames that the kernel has told, and are for show.

namespace dsec::runners {
using engine::FileEvent;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

constexpr std::uint32_t kMask = IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM |
                                IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_EXCL_UNLINK;
// The two halves of a rename come one after the other; the second is missing when the file leaves what is watched.
constexpr milliseconds kRenamePatience{50};
constexpr std::size_t kMaxDepth = 512;

std::string join(const std::string& directory, const std::string& name) {
  return directory == "/" ? "/" + name : directory + "/" + name;
}

bool is_at_or_below(const std::string& path, const std::string& directory) {
  return path == directory || (path.size() > directory.size() && path.starts_with(directory) &&
                               (directory == "/" || path[directory.size()] == '/'));
}

class InotifyWatch final : public engine::FileWatch {
 public:
  InotifyWatch(UniqueFd init, const std::string& path, bool recursive)
      : recursive_(recursive), inotify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (!inotify_) throw system_error("make an inotify").hint("sysctl fs.inotify.max_user_instances");
    root_.reset(::openat(init.get(), "root", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root_) throw system_error("open the root of the sandbox");
    // PID 1 is gone when its descriptor says so.
    init_ = std::move(init);
    UniqueFd top = open_in_root(root_.get(), path, O_PATH);
    if (!top) throw system_error("watch " + quote(path));
    top_path_ = path;
    while (top_path_.size() > 1 && top_path_.back() == '/') top_path_.pop_back();
    struct stat info = {};
    if (::fstat(top.get(), &info) != 0) throw system_error("watch " + quote(path));
    top_ = add(top.get(), top_path_);
    if (top_ < 0) throw no_watch(path);
    if (S_ISDIR(info.st_mode) && recursive_) descend(std::move(top), top_path_, Tell::Nothing, 0);
  }

  std::optional<FileEvent> next(std::optional<milliseconds> timeout) override {
    const auto end = steady_clock::now() + timeout.value_or(milliseconds(0));
    for (;;) {
      if (!ready_.empty()) {
        FileEvent event = std::move(ready_.front());
        ready_.pop_front();
        return event;
      }
      if (ended_) throw failure("the watch has ended");
      auto wait = kEndCheck;
      if (moved_) wait = std::min(wait, left_until(moved_->give_up));
      if (timeout) wait = std::min(wait, left_until(end));
      pollfd waiting{inotify_.get(), POLLIN, 0};
      const int ready = ::poll(&waiting, 1, static_cast<int>(wait.count()));
      if (ready > 0) {
        read_events();
        continue;
      }
      if (moved_ && left_until(moved_->give_up).count() == 0) give_up_move();
      if (!ready_.empty()) continue;
      if (!init_lives()) {
        end_with(FileEvent::Kind::Ended);
        continue;
      }
      if (timeout && left_until(end).count() == 0) return std::nullopt;
    }
  }

 private:
  enum class Tell { Nothing, Created };
  static constexpr milliseconds kEndCheck{500};

  struct Moved {
    std::uint32_t cookie;
    std::string path;
    bool directory;
    steady_clock::time_point give_up;
  };

  static milliseconds left_until(steady_clock::time_point end) {
    return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(end - steady_clock::now()));
  }

  bool init_lives() const { return ::faccessat(init_.get(), "root", F_OK, AT_SYMLINK_NOFOLLOW) == 0; }

  static Error no_watch(const std::string& path) {
    Error error = system_error("watch " + quote(path));
    if (errno == ENOSPC) error.hint("sysctl fs.inotify.max_user_watches");
    return error;
  }

  int add(int descriptor, const std::string& path) {
    // The magic link leads to the file that the descriptor is of, and nowhere else.
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const int watch = ::inotify_add_watch(inotify_.get(), link.c_str(), kMask);
    if (watch >= 0) paths_[watch] = path;
    return watch;
  }

  // Watches what lies below `directory`, which is watched already. What appeared before its parent was watched has had
  // no event: it is told as created, at worst twice.
  void descend(UniqueFd directory, const std::string& path, Tell tell, std::size_t depth) {
    std::vector<std::string> names;
    try {
      names = sorted_names(directory.get());
    } catch (const Error&) {
      return;  // it is gone again, which its own event tells
    }
    for (const std::string& name : names) {
      const std::string child = join(path, name);
      struct stat info = {};
      if (::fstatat(directory.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (tell == Tell::Created) ready_.push_back({FileEvent::Kind::Created, child, "", S_ISDIR(info.st_mode)});
      if (S_ISDIR(info.st_mode)) enter(directory.get(), name, child, tell, depth + 1);
    }
  }

  void enter(int parent, const std::string& name, const std::string& path, Tell tell, std::size_t depth) {
    UniqueFd directory(::openat(parent, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    // Mounts of other filesystems (/proc, binds of the host) are no part of the tree, as elsewhere in dsec.
    if (!directory || depth > kMaxDepth || device_of(directory.get()) != device_of(parent)) return;
    if (add(directory.get(), path) < 0) {
      // Better to say that something is missed than to say nothing of it.
      if (errno == ENOSPC) throw no_watch(path);
      return;
    }
    descend(std::move(directory), path, tell, depth);
  }

  static dev_t device_of(int descriptor) {
    struct stat info = {};
    return ::fstat(descriptor, &info) == 0 ? info.st_dev : 0;
  }

  void enter_new(const std::string& path, Tell tell) {
    // By its components, none of which may be a link: that would lead out of what is watched.
    UniqueFd parent = open_beneath_without_links(path.substr(0, std::max<std::size_t>(path.rfind('/'), 1)));
    if (parent) enter(parent.get(), path.substr(path.rfind('/') + 1), path, tell, 1);
  }

  UniqueFd open_beneath_without_links(const std::string& path) const {
    UniqueFd at = open_in_root(root_.get(), top_path_, O_PATH);
    if (!at || path == top_path_) return at;
    const std::string below = path.substr(top_path_ == "/" ? 1 : top_path_.size() + 1);
    for (const std::string& name : path_components(below)) {
      at.reset(::openat(at.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!at) break;
    }
    return at;
  }

  void read_events() {
    alignas(inotify_event) char buffer[64 * 1024];
    const ssize_t got = ::read(inotify_.get(), buffer, sizeof buffer);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) throw system_error("read file events");
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      handle(*event);
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
  }

  void handle(const inotify_event& event) {
    if (event.mask & IN_Q_OVERFLOW) return on_overflow();
    const auto found = paths_.find(event.wd);
    if (found == paths_.end()) return;
    if (event.mask & IN_IGNORED) {
      paths_.erase(found);
      return;
    }
    const std::string path = event.len > 0 ? join(found->second, event.name) : found->second;
    const bool directory = (event.mask & IN_ISDIR) != 0;
    if (event.len == 0) return on_watched_itself(event, path, directory);
    if (moved_ && !(event.mask & IN_MOVED_TO && event.cookie == moved_->cookie)) give_up_move();
    if (event.mask & IN_MOVED_FROM)
      moved_ = Moved{event.cookie, path, directory, steady_clock::now() + kRenamePatience};
    else if (event.mask & IN_MOVED_TO)
      on_moved_to(event.cookie, path, directory);
    else if (event.mask & IN_CREATE)
      on_created(path, directory);
    else if (event.mask & IN_DELETE)
      tell(FileEvent::Kind::Deleted, path, directory);
    else if (!(directory && recursive_))  // a directory that is watched tells it itself
      on_changed(event.mask, path, directory);
  }

  void on_watched_itself(const inotify_event& event, const std::string& path, bool directory) {
    if (event.mask & (IN_DELETE_SELF | IN_MOVE_SELF)) {
      // Below the top its parent tells.
      if (event.wd == top_) end_with(FileEvent::Kind::Ended);
      return;
    }
    on_changed(event.mask, path, directory);
  }

  void on_changed(std::uint32_t mask, const std::string& path, bool directory) {
    if (mask & IN_MODIFY) tell(FileEvent::Kind::Modified, path, directory);
    if (mask & IN_CLOSE_WRITE) tell(FileEvent::Kind::Closed, path, directory);
    if (mask & IN_ATTRIB) tell(FileEvent::Kind::Attributes, path, directory);
  }

  void on_created(const std::string& path, bool directory) {
    tell(FileEvent::Kind::Created, path, directory);
    if (directory && recursive_) enter_new(path, Tell::Created);
  }

  void on_moved_to(std::uint32_t cookie, const std::string& path, bool directory) {
    if (!moved_ || moved_->cookie != cookie) return on_created(path, directory);
    const std::string from = std::move(moved_->path);
    moved_.reset();
    // The watches stay with the directories; they have other names now.
    if (directory)
      for (auto& [watch, watched] : paths_)
        if (is_at_or_below(watched, from)) watched = path + watched.substr(from.size());
    ready_.push_back({FileEvent::Kind::Moved, path, from, directory});
  }

  // It went where nobody watches.
  void give_up_move() {
    const Moved moved = *std::exchange(moved_, std::nullopt);
    tell(FileEvent::Kind::Deleted, moved.path, moved.directory);
    if (!moved.directory) return;
    for (const auto& [watch, watched] : paths_)
      if (is_at_or_below(watched, moved.path)) ::inotify_rm_watch(inotify_.get(), watch);
  }

  void on_overflow() {
    moved_.reset();
    tell(FileEvent::Kind::Overflow, top_path_, false);
    // A directory whose making was lost would stay unwatched.
    if (recursive_)
      if (UniqueFd top = open_in_root(root_.get(), top_path_, O_PATH | O_DIRECTORY))
        descend(std::move(top), top_path_, Tell::Nothing, 0);
  }

  void tell(FileEvent::Kind kind, const std::string& path, bool directory) {
    ready_.push_back({kind, path, "", directory});
  }

  void end_with(FileEvent::Kind kind) {
    tell(kind, top_path_, false);
    ended_ = true;
  }

  const bool recursive_;
  UniqueFd inotify_, init_, root_;
  std::string top_path_;
  int top_ = -1;
  bool ended_ = false;
  std::map<int, std::string> paths_;
  std::optional<Moved> moved_;
  std::deque<FileEvent> ready_;
};

}  // namespace

std::unique_ptr<engine::FileWatch> watch_files(UniqueFd init, const std::string& path, bool recursive) {
  return std::make_unique<InotifyWatch>(std::move(init), path, recursive);
}

}  // namespace dsec::runners
