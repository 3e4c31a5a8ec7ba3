#include "core/engine/birthplaces.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

// So many that few of the inodes which a busy host deletes in a minute lie where the next one is made.
constexpr std::size_t kPlaces = 256;

// Other filesystems need no such thing, and refuse it.
void keep_apart_below(const fs::path& directory) {
  const UniqueFd open(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  int flags = 0;
  if (!open || ::ioctl(open.get(), FS_IOC_GETFLAGS, &flags) != 0 || (flags & FS_TOPDIR_FL) != 0) return;
  flags |= FS_TOPDIR_FL;
  static_cast<void>(::ioctl(open.get(), FS_IOC_SETFLAGS, &flags));
}

bool make_born(const fs::path& births, const fs::path& target, std::string_view key) {
  const fs::path place = births / std::to_string(std::hash<std::string_view>{}(key) % kPlaces);
  const fs::path born = place / target.filename();
  if (::mkdir(born.c_str(), 0700) != 0) {
    if (::mkdir(births.c_str(), 0700) == 0) keep_apart_below(births);
    ::mkdir(place.c_str(), 0700);
    if (::mkdir(born.c_str(), 0700) != 0) return false;
  }
  if (::rename(born.c_str(), target.c_str()) == 0) return true;
  ::rmdir(born.c_str());
  return false;
}

}  // namespace

void make_spread_directory(const Home& home, const fs::path& target, std::string_view key) {
  if (make_born(home.run() / "births", target, key)) return;
  if (::mkdir(target.c_str(), 0700) != 0) throw system_error("mkdir " + quote(target.native()));
}

}  // namespace dsec::engine
