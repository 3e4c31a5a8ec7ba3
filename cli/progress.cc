#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "cli/output.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {
using Clock = std::chrono::steady_clock;

struct Step {
  Clock::time_point began = Clock::now();
  std::uint64_t done = 0, total = 0;
};

std::string passed(Clock::time_point began) {
  return format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began));
}

// One line for each step that ended: what a log file or a CI server shows.
class LineProgress : public Progress {
 public:
  void begin(std::string_view step) override {
    const std::lock_guard lock(mutex_);
    steps_[std::string(step)] = {};
  }
  void end(std::string_view step, std::string_view result) override {
    const std::lock_guard lock(mutex_);
    steps_.erase(std::string(step));
    say(printable(step) + ": " + printable(result));
  }
  void warn(std::string_view message) override {
    const std::lock_guard lock(mutex_);
    say("warning: " + printable(message));
  }
  void output(std::string_view step, std::string_view line) override {
    const std::lock_guard lock(mutex_);
    say(printable(step) + " | " + printable(line));
  }

 protected:
  // Progress is no result: when standard error cannot be written, the work goes on.
  virtual void say(const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }

  std::mutex mutex_;
  std::map<std::string, Step> steps_;
};

// The same lines, and below them one line that tells how far the running steps are.
class TerminalProgress : public LineProgress {
 public:
  ~TerminalProgress() override { erase(); }
  void begin(std::string_view step) override {
    LineProgress::begin(step);
    const std::lock_guard lock(mutex_);
    draw(true);
  }
  void advance(std::string_view step, std::uint64_t done, std::uint64_t total) override {
    const std::lock_guard lock(mutex_);
    const auto found = steps_.find(std::string(step));
    if (found == steps_.end()) return;
    found->second.done = done;
    found->second.total = total;
    draw(false);
  }

 protected:
  void say(const std::string& line) override {
    erase();
    LineProgress::say(line);
    draw(true);
  }

 private:
  static std::size_t columns() {
    winsize size{};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
  }

  static std::string describe(const std::string& name, const Step& step) {
    std::string text = printable(name);
    if (step.total > 0) {
      constexpr std::size_t kCells = 20;
      const std::size_t full = std::min<std::size_t>(kCells, step.done * kCells / step.total);
      text += " [" + std::string(full, '#') + std::string(kCells - full, '.') + "]";
    }
    if (step.done > 0) {
      const double seconds = std::chrono::duration<double>(Clock::now() - step.began).count();
      text += " " + format_size(step.done) + (step.total ? " of " + format_size(step.total) : "");
      if (seconds > 0.5)
        text += ", " + format_size(static_cast<std::uint64_t>(static_cast<double>(step.done) / seconds)) + "/s";
    }
    return text + " " + passed(step.began);
  }

  void draw(bool now) {
    if (!now && Clock::now() - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = Clock::now();
    erase();
    if (steps_.empty()) return;
    std::string line;
    for (const auto& [name, step] : steps_) line += (line.empty() ? "" : "   ") + describe(name, step);
    const std::size_t room = columns() - 1;
    // A name may hold characters of several bytes: cut before one, not inside.
    std::size_t cut = std::min(line.size(), room);
    while (cut > 0 && cut < line.size() && (static_cast<unsigned char>(line[cut]) & 0xC0) == 0x80) --cut;
    line.resize(cut);
    std::fputs(line.c_str(), stderr);
    shown_ = true;
  }

  void erase() {
    if (std::exchange(shown_, false)) std::fputs("\r\033[K", stderr);
  }

  Clock::time_point drawn_;
  bool shown_ = false;
};

// Warnings only.
class QuietProgress : public LineProgress {
 public:
  void begin(std::string_view) override {}
  void end(std::string_view, std::string_view) override {}
  void output(std::string_view, std::string_view) override {}
};

}  // namespace

std::unique_ptr<Progress> make_progress(bool quiet) {
  if (quiet) return std::make_unique<QuietProgress>();
  if (::isatty(STDERR_FILENO)) return std::make_unique<TerminalProgress>();
  return std::make_unique<LineProgress>();
}

}  // namespace dsec::cli
