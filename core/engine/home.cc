#include "core/engine/home.h"

#include <pwd.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdlib>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/sandbox_id.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "1";

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

fs::path Home::place() {
  if (const char* home = std::getenv("DSEC_HOME"); home && *home) return fs::absolute(home);
  if (::geteuid() == 0) return "/var/lib/dsec";
  if (const char* data = std::getenv("XDG_DATA_HOME"); data && *data == '/') return fs::path(data) / "dsec";
  if (const char* home = std::getenv("HOME"); home && *home == '/') return fs::path(home) / ".local/share/dsec";
  throw usage_error("no place for the store is known").hint("set DSEC_HOME or HOME");
}

Home Home::open() { return open(place()); }

Home Home::open(const fs::path& root) {
  return attempt("cannot use the dsec home " + quote(root.native()), [&] {
    // Sandboxes with user namespaces must be able to reach nothing here: 0700 all the way down is enforced at the root.
    make_directories(root, 0700);
    const fs::path format = root / "format", host = root / "host-id";
    if (!fs::exists(format) || !fs::exists(host)) {
      const FileLock lock(root / "lock", FileLock::Mode::Exclusive);
      for (const char* part : {"store", "cache", "run", "sandboxes", "names"}) make_directories(root / part, 0700);
      if (!fs::exists(host)) write_file_atomic(host, random_id(6) + "\n", 0600);
      if (!fs::exists(format)) write_file_atomic(format, std::string(kFormat) + "\n", 0600);
    }
    if (const std::string found = trimmed(read_file(format, 64)); found != kFormat)
      throw failure("it has format " + quote(found) + ", this dsec knows " + quote(kFormat))
          .hint("use the dsec release that wrote it, or a newer one");
    std::string host_id = trimmed(read_file(host, 64));
    if (host_id.size() != 6 || !is_id_text(host_id)) throw failure("its host-id file is damaged");
    return Home(root, std::move(host_id));
  });
}

}  // namespace dsec::engine
