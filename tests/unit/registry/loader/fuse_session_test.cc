// The protocol, with this test as the kernel: a pair of sockets keeps messages apart like /dev/fuse.
#include "registry/loader/fuse_session.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "core/base/error.h"

namespace dsec::registry::test {
namespace {

constexpr std::uint64_t kHasResend = 1ull << 39, kResent = 1ull << 63;

class Files : public FuseFiles {
 public:
  std::optional<std::uint64_t> size(const ServedName& blob) override {
    const auto found = files.find(blob);
    return found == files.end() ? std::nullopt : std::optional<std::uint64_t>(found->second.size());
  }
  void read(const ServedName& blob, std::uint64_t offset, std::size_t size,
            std::function<void(int, std::span<const std::byte>)> done) override {
    if (stalled) return;  // a server that is killed before it answers
    const std::string part = files.at(blob).substr(offset, size);
    done(0, std::as_bytes(std::span(part)));
  }
  void opened(const ServedName&) override { ++opens; }
  void closed(const ServedName& blob) override { last_closed.push_back(blob); }
  std::map<ServedName, std::string> files;
  bool stalled = false;
  int opens = 0;
  std::vector<ServedName> last_closed;
};

struct Reply {
  fuse_out_header header{};
  std::string body;
  template <typename Body>
  Body as() const {
    Body value{};
    REQUIRE(body.size() >= sizeof value);
    std::memcpy(&value, body.data(), sizeof value);
    return value;
  }
};

/// One server, and the kernel's side of its connection.
struct Connection {
  explicit Connection(std::uint64_t offered = kHasResend) : memory(SharedState::make("instance")) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    device = UniqueFd(ends[0]);
    kernel = UniqueFd(ends[1]);
    files.files.emplace(blob, std::string(5000, 'a') + std::string(5000, 'b'));
    server.emplace(*this);
    fuse_init_in in{};
    in.major = FUSE_KERNEL_VERSION;
    in.minor = 40;
    in.max_readahead = 1 << 17;
    in.flags = FUSE_INIT_EXT | FUSE_ASYNC_READ | FUSE_MAX_PAGES | FUSE_POSIX_LOCKS;
    in.flags2 = static_cast<std::uint32_t>(offered >> 32);
    ask(FUSE_INIT, 0, &in, sizeof in);
    const auto out = answer().as<fuse_init_out>();
    CHECK(out.major == FUSE_KERNEL_VERSION);
    CHECK((out.flags & FUSE_POSIX_LOCKS) == 0);
    CHECK(out.flags2 == static_cast<std::uint32_t>(offered >> 32));
  }

  struct Server {
    explicit Server(Connection& of) : state(of.memory), session(of.device, state, of.files) {}
    SharedState state;
    FuseSession session;
  };

  // As the kernel would put it into the slot that is read into.
  std::uint64_t ask(std::uint32_t opcode, std::uint64_t inode, const void* argument, std::size_t size) {
    fuse_in_header header{};
    header.len = static_cast<std::uint32_t>(sizeof header + size);
    header.opcode = opcode;
    header.unique = next += 2;
    header.nodeid = inode;
    char* const slot = server->state.take_slot();
    std::memcpy(slot, &header, sizeof header);
    if (size) std::memcpy(slot + sizeof header, argument, size);
    server->session.handle(slot);
    return header.unique;
  }
  Reply answer() {
    Reply reply;
    char bytes[64 << 10];
    const ssize_t got = ::recv(kernel.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    REQUIRE(got >= static_cast<ssize_t>(sizeof reply.header));
    std::memcpy(&reply.header, bytes, sizeof reply.header);
    reply.body.assign(bytes + sizeof reply.header, static_cast<std::size_t>(got) - sizeof reply.header);
    return reply;
  }
  std::uint64_t lookup(const std::string& name) {
    ask(FUSE_LOOKUP, FUSE_ROOT_ID, name.c_str(), name.size() + 1);
    const Reply reply = answer();
    return reply.header.error ? 0 : reply.as<fuse_entry_out>().nodeid;
  }
  std::uint64_t open(std::uint64_t inode) {
    const fuse_open_in in{};
    ask(FUSE_OPEN, inode, &in, sizeof in);
    return answer().as<fuse_open_out>().fh;
  }
  std::uint64_t read(std::uint64_t inode, std::uint64_t offset, std::uint32_t size) {
    fuse_read_in in{};
    in.offset = offset;
    in.size = size;
    return ask(FUSE_READ, inode, &in, sizeof in);
  }
  bool quiet() {
    char byte = 0;
    return ::recv(kernel.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
  }
  void replace_server() {
    server.reset();
    files.stalled = false;
    server.emplace(*this);
    server->session.start(0, [] {});
  }

  const ServedName blob{Digest::of("a blob"), Digest::of("its chunk digests")};
  Files files;
  UniqueFd memory, device, kernel;
  std::optional<Server> server;
  std::uint64_t next = 0;
};

}  // namespace

TEST_CASE("blobs are files named by their digest, and nothing else is there", "[registry][loader]") {
  Connection connection;
  const std::uint64_t inode = connection.lookup(connection.blob.str());
  CHECK(inode > FUSE_ROOT_ID);
  CHECK(connection.lookup(connection.blob.str()) == inode);
  CHECK(connection.lookup(ServedName{Digest::of("other"), connection.blob.chunks}.str()) == 0);
  CHECK(connection.lookup(ServedName{connection.blob.blob, Digest::of("others")}.str()) == 0);
  CHECK(connection.lookup(connection.blob.blob.hex()) == 0);
  CHECK(connection.lookup("x") == 0);
  const fuse_getattr_in none{};
  connection.ask(FUSE_GETATTR, inode, &none, sizeof none);
  CHECK(connection.answer().as<fuse_attr_out>().attr.size == 10000);
  connection.ask(FUSE_GETATTR, 77, &none, sizeof none);
  CHECK(connection.answer().header.error == -ESTALE);
  connection.ask(FUSE_READDIR, FUSE_ROOT_ID, &none, sizeof none);
  CHECK(connection.answer().header.error == -ENOSYS);
}

TEST_CASE("files are read, never written, and counted while they are open", "[registry][loader]") {
  Connection connection;
  const std::uint64_t inode = connection.lookup(connection.blob.str());
  const std::uint64_t file = connection.open(inode);
  CHECK(connection.server->state.handles() == 1);
  const std::uint64_t asked = connection.read(inode, 4990, 20);
  const Reply reply = connection.answer();
  CHECK(reply.header.unique == asked);
  CHECK(reply.body == std::string(10, 'a') + std::string(10, 'b'));
  fuse_open_in writing{};
  writing.flags = O_RDWR;
  connection.ask(FUSE_OPEN, inode, &writing, sizeof writing);
  CHECK(connection.answer().header.error == -EROFS);
  fuse_release_in release{};
  release.fh = file;
  connection.ask(FUSE_RELEASE, inode, &release, sizeof release);
  CHECK(connection.answer().header.error == 0);
  CHECK(connection.server->state.handles() == 0);
}

TEST_CASE("a blob is let go when nobody has it open any more", "[registry][loader]") {
  Connection connection;
  const ServedName other{Digest::of("another blob"), connection.blob.chunks};
  connection.files.files.emplace(other, "x");
  const std::uint64_t inode = connection.lookup(connection.blob.str()), second = connection.lookup(other.str());
  const auto release = [&](std::uint64_t of, std::uint64_t file) {
    fuse_release_in in{};
    in.fh = file;
    connection.ask(FUSE_RELEASE, of, &in, sizeof in);
    CHECK(connection.answer().header.error == 0);
  };
  const std::uint64_t a = connection.open(inode), b = connection.open(inode), c = connection.open(second);
  CHECK(connection.files.opens == 3);
  release(inode, a);
  CHECK(connection.files.last_closed.empty());
  release(second, c);
  CHECK(connection.files.last_closed == std::vector{other});
  release(inode, b);
  CHECK(connection.files.last_closed == std::vector{other, connection.blob});
}

TEST_CASE("what a blob has fetched stands in the memory where it is told to", "[registry][loader]") {
  Connection connection;
  const std::uint64_t inode = connection.lookup(connection.blob.str());
  connection.server->state.add_fetched(inode, 5);
  connection.server->state.add_fetched(inode, 7);
  std::uint64_t fetched = 0;
  REQUIRE(::pread(connection.memory.get(), &fetched, sizeof fetched,
                  static_cast<off_t>(SharedState::place_of_fetched(inode))) == sizeof fetched);
  CHECK(fetched == 12);
}

TEST_CASE("an open file that is asked for again by its next server is one open file", "[registry][loader]") {
  Connection connection;
  const std::uint64_t inode = connection.lookup(connection.blob.str());
  connection.open(inode);
  connection.next = (connection.next - 2) | kResent;
  connection.open(inode);
  CHECK(connection.server->state.handles() == 1);
}

TEST_CASE("the next server asks the kernel for what the last one did not answer", "[registry][loader]") {
  Connection connection;
  const std::uint64_t inode = connection.lookup(connection.blob.str());
  connection.open(inode);
  connection.files.stalled = true;
  connection.read(inode, 0, 10);
  CHECK(connection.quiet());
  connection.replace_server();
  const Reply notice = connection.answer();
  CHECK(notice.header.unique == 0);
  CHECK(notice.header.error == 7);  // FUSE_NOTIFY_RESEND
  CHECK(connection.quiet());
  // It knows the inode and the open file.
  connection.read(inode, 0, 5);
  CHECK(connection.answer().body == "aaaaa");
  CHECK(connection.server->state.handles() == 1);
}

TEST_CASE("where the kernel cannot send it again the next server finds it in the holder's memory",
          "[registry][loader]") {
  Connection connection(0);
  const std::uint64_t inode = connection.lookup(connection.blob.str());
  connection.files.stalled = true;
  const std::uint64_t first = connection.read(inode, 0, 10), second = connection.read(inode, 9990, 10);
  CHECK(connection.quiet());
  connection.replace_server();
  std::map<std::uint64_t, std::string> answers;
  for (int i = 0; i < 2; ++i) {
    const Reply reply = connection.answer();
    answers[reply.header.unique] = reply.body;
  }
  CHECK(answers == std::map<std::uint64_t, std::string>{{first, "aaaaaaaaaa"}, {second, "bbbbbbbbbb"}});
  CHECK(connection.quiet());
  CHECK(connection.server->state.slots_under_way().empty());
}

TEST_CASE("an error that is not the end is told, and serving goes on until the end", "[registry][loader]") {
  Connection connection(0);
  // Closing with something unread is ECONNRESET for the other side, once; then there is nobody.
  REQUIRE(::send(connection.device.get(), "x", 1, 0) == 1);
  connection.kernel.reset();
  std::string told;
  int ends = 0;
  {
    FuseSession session(connection.device, connection.server->state, connection.files);
    session.start(
        1, [&] { ++ends; }, [&](const std::string& what) { told += what; });
  }
  CHECK(ends == 1);
  CHECK_THAT(told, Catch::Matchers::Contains("ECONNRESET"));
}

TEST_CASE("memory of another release is refused", "[registry][loader]") {
  const UniqueFd memory = SharedState::make("instance");
  CHECK(SharedState(memory).instance() == "instance");
  const std::uint32_t other = SharedState::kVersion + 1;
  REQUIRE(::pwrite(memory.get(), &other, sizeof other, 8) == sizeof other);
  CHECK_THROWS_AS(SharedState(memory), Error);
}

}  // namespace dsec::registry::test
