#include "runners/guest/users.h"

#include <asm/stat.h>
#include <linux/stat.h>

#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

// Larger files are not read: one written from inside must not cost the keeper more.
constexpr size_t kMaxFile = 4u << 20;

struct File {
  Buffer text;

  // Missing, special and oversized files read as empty.
  explicit File(int root, const char* path) : text{} {
    const long fd = open_in_root(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return;
    struct stat info = {};
    if (sys(__NR_fstat, fd, &info) == 0 && (info.st_mode & S_IFMT) == S_IFREG &&
        static_cast<size_t>(info.st_size) <= kMaxFile) {
      text.reserve(static_cast<size_t>(info.st_size) + 1);
      while (text.size < text.room) {
        const long got = read_fd(static_cast<int>(fd), text.data + text.size, text.room - text.size);
        if (got <= 0) break;
        text.size += static_cast<size_t>(got);
      }
    }
    close_fd(static_cast<int>(fd));
  }
  ~File() { text.clear(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

struct Span {
  const char* at;
  const char* end;

  size_t size() const { return static_cast<size_t>(end - at); }
  bool is(Span other) const { return size() == other.size() && memcmp(at, other.at, size()) == 0; }

  // The part up to `separator`, which is taken off with it.
  Span cut(char separator) {
    const char* to = at;
    while (to < end && *to != separator) ++to;
    const Span part{at, to};
    at = to < end ? to + 1 : end;
    return part;
  }
  // False when it is no number below 2^32 - 1.
  bool number(uint32_t& value) const {
    if (at == end || size() > 10) return false;
    uint64_t sum = 0;
    for (const char* c = at; c < end; ++c) {
      if (*c < '0' || *c > '9') return false;
      sum = sum * 10 + static_cast<unsigned>(*c - '0');
    }
    if (sum >= 0xffffffffu) return false;
    value = static_cast<uint32_t>(sum);
    return true;
  }
};

void copy(char* to, size_t room, Span from) {
  const size_t size = from.size() < room ? from.size() : room - 1;
  memcpy(to, from.at, size);
  to[size] = '\0';
}

// The entry of /etc/passwd with this name or, when it is a number, this id.
bool find_passwd(int root, Span wanted, User& user, Span* login, char* login_storage, size_t room) {
  uint32_t number = 0;
  const bool numeric = wanted.number(number);
  const File file(root, "/etc/passwd");
  Span rest{file.text.data, file.text.data + file.text.size};
  bool found = false;
  // A name wins over a number, as for chown(1).
  for (int pass = 0; pass < 2 && !found; ++pass) {
    Span lines = rest;
    while (lines.at < lines.end && !found) {
      Span line = lines.cut('\n');
      const Span name = line.cut(':');
      line.cut(':');
      uint32_t uid = 0, gid = 0;
      if (!line.cut(':').number(uid) || !line.cut(':').number(gid)) continue;
      if (pass == 0 ? !name.is(wanted) : !(numeric && uid == number)) continue;
      line.cut(':');
      const Span home = line.cut(':');
      user.uid = uid;
      user.gid = gid;
      if (home.size() > 0 && home.size() < sizeof user.home) copy(user.home, sizeof user.home, home);
      copy(login_storage, room, name);
      *login = {login_storage, login_storage + strlen(login_storage)};
      found = true;
    }
  }
  if (found) return true;
  if (!numeric) return false;
  user.uid = number;
  return true;
}

}  // namespace

bool find_user(int root, const char* wanted, User& user, Failure& failure) {
  user = {};
  memcpy(user.home, "/", 2);
  Span text{wanted, wanted + strlen(wanted)};
  copy(user.name, sizeof user.name, text);
  Span name = text.cut(':');
  const Span group = text;
  static constexpr char kRoot[] = "root";
  if (name.size() == 0) name = {kRoot, kRoot + 4};
  char login_storage[64];
  Span login{login_storage, login_storage};
  if (!find_passwd(root, name, user, &login, login_storage, sizeof login_storage)) {
    // An image without /etc/passwd still has its root.
    if (!name.is({kRoot, kRoot + 4})) return failure.set("find user", user.name, -ENOENT), false;
  }
  if (user.uid == 0 && user.home[1] == '\0') memcpy(user.home, "/root", 6);
  if (user.uid == 0 && group.size() == 0 && user.gid == 0 && login.size() == 0) return true;

  const File file(root, "/etc/group");
  Span lines{file.text.data, file.text.data + file.text.size};
  uint32_t wanted_gid = 0;
  const bool numeric = group.number(wanted_gid);
  bool group_found = group.size() == 0;
  while (lines.at < lines.end) {
    Span line = lines.cut('\n');
    const Span entry = line.cut(':');
    line.cut(':');
    uint32_t gid = 0;
    if (!line.cut(':').number(gid)) continue;
    if (group.size() > 0) {
      if (!entry.is(group) || group_found) continue;
      user.gid = gid;
      group_found = true;
      continue;
    }
    Span members = line;
    while (login.size() > 0 && members.at < members.end) {
      if (members.cut(',').is(login) && user.group_count < kMaxGroups) {
        user.groups[user.group_count++] = gid;
        break;
      }
    }
  }
  if (!group_found && numeric) {
    user.gid = wanted_gid;
    group_found = true;
  }
  if (!group_found) return failure.set("find the group of", user.name, -ENOENT), false;
  return true;
}

}  // namespace dsec::guest
