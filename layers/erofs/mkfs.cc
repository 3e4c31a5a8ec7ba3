#include "layers/erofs/mkfs.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "core/base/child_process.h"
#include "core/base/error.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

using Version = std::array<int, 3>;

Version parse_version(std::string_view text) {
  Version version{};
  for (int& part : version) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), part);
    if (error != std::errc()) break;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with('.')) break;
    text.remove_prefix(1);
  }
  return version;
}

bool executable(const fs::path& path) { return ::access(path.c_str(), X_OK) == 0 && !fs::is_directory(path); }

fs::path locate() {
  if (const char* named = std::getenv("DSEC_MKFS_EROFS"); named && *named) {
    if (!executable(named)) throw failure("DSEC_MKFS_EROFS names " + quote(named) + ", which cannot be executed");
    return named;
  }
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (const fs::path beside = self.parent_path().parent_path() / "libexec/dsec/mkfs.erofs";
      !error && executable(beside))
    return beside;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/sbin:/usr/bin:/sbin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const fs::path program = fs::path(folder) / "mkfs.erofs"; !folder.empty() && executable(program))
      return program;
  throw failure("there is no mkfs.erofs, which writes the images of layers")
      .hint("./dev build, which also builds erofs-utils where the distribution's is too old")
      .hint("install erofs-utils 1.9.3 or newer, or name a program in DSEC_MKFS_EROFS");
}

}  // namespace

MkfsFitness fitness_of_mkfs(std::string_view text) {
  const Version version = parse_version(text);
  if (version < Version{1, 7, 0} || version == Version{1, 8, 7} || version == Version{1, 8, 8})
    return MkfsFitness::Unusable;
  return version < Version{1, 9, 3} ? MkfsFitness::Old : MkfsFitness::Good;
}

Mkfs Mkfs::find() {
  Mkfs mkfs{locate(), {}};
  const CommandResult shown = run_command({.argv = {mkfs.program.native(), "-V"}});
  // "mkfs.erofs (erofs-utils) 1.9.4"; 1.5 does not know -V and names its version in the usage.
  for (const std::string& text : {shown.out, shown.err}) {
    const std::size_t word = text.find("erofs");
    const std::size_t digit = word == std::string::npos ? word : text.find_first_of("0123456789", word);
    if (!mkfs.version.empty() || digit == std::string::npos) continue;
    mkfs.version = text.substr(digit, text.find_first_not_of("0123456789.", digit) - digit);
  }
  if (mkfs.version.empty() || fitness_of_mkfs(mkfs.version) == MkfsFitness::Unusable)
    throw failure(
        quote(mkfs.program.native()) + " is version " + (mkfs.version.empty() ? "(unknown)" : mkfs.version) +
        ", which " +
        (parse_version(mkfs.version) < Version{1, 7, 0} ? "cannot read tar archives" : "writes damaged images"))
        .hint("./dev build, which also builds erofs-utils where the distribution's is too old")
        .hint("install erofs-utils 1.9.3 or newer, or name a program in DSEC_MKFS_EROFS");
  return mkfs;
}

}  // namespace dsec::layers
