#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::layers {

/// A repository made by running git with a fixed identity and a clock that ticks a minute per command.
class TestRepository {
 public:
  explicit TestRepository(std::filesystem::path place, std::vector<std::string> init = {}) : path_(std::move(place)) {
    std::filesystem::create_directories(path_);
    std::vector<std::string> command = {"init", "-q", "-b", "main"};
    command.insert(command.end(), init.begin(), init.end());
    git(command);
  }

  std::string git(std::vector<std::string> words, std::string_view input = {}, bool must_pass = true) {
    now_ += 60;
    const std::string stamp = std::to_string(now_) + " +0000";
    SpawnOptions options;
    options.argv = {"git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", "-c", "gc.auto=0"};
    options.argv.insert(options.argv.end(), words.begin(), words.end());
    options.directory = path_;
    options.environment = {{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C",
                            "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=Case",
                            "GIT_AUTHOR_EMAIL=case@example.invalid", "GIT_COMMITTER_NAME=Case",
                            "GIT_COMMITTER_EMAIL=case@example.invalid", "GIT_AUTHOR_DATE=" + stamp,
                            "GIT_COMMITTER_DATE=" + stamp}};
    const CommandResult result = run_command(options, input);
    status = result.status.shell_code();
    if (must_pass && status != 0) throw failure("git " + words[0] + ": " + result.err);
    std::string out = result.out;
    if (out.ends_with('\n')) out.pop_back();
    return out;
  }

  void write(const std::string& name, std::string_view bytes, int mode = 0644) {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    std::filesystem::permissions(path_ / name, std::filesystem::perms(mode));
  }

  std::string commit(const std::string& message) {
    git({"add", "-A"});
    git({"commit", "-q", "--allow-empty", "-m", message});
    return git({"rev-parse", "HEAD"});
  }

  /// A tree object of any bytes at all; its id.
  std::string raw_object(const std::string& kind, std::string_view bytes) {
    return git({"hash-object", "-t", kind, "-w", "--literally", "--stdin"}, bytes);
  }

  const std::filesystem::path& path() const { return path_; }
  int status = 0;  ///< of the last command

 private:
  std::filesystem::path path_;
  long now_ = 1700000000;
};

}  // namespace dsec::layers
