#include "runners/vm/guest_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string frame(channel::Type type, const std::string& fields, std::uint32_t stream = 0) {
  const channel::ChannelHeader header{static_cast<std::uint32_t>(fields.size()), type, 0, stream};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + fields;
}

std::string welcome(std::uint64_t magic = channel::kMagic, std::uint32_t version = channel::kVersion) {
  const auto fields = FrameText().u64(magic).u32(version).u64(1'500'000).u64(1 << 28).str("6.1.0").u32(0);
  return frame(channel::Type::Welcome, fields.text());
}

// A guest that has said `said` already, and then closes the channel or stays.
class Guest {
 public:
  enum class Then { Stays, Closes };
  explicit Guest(const std::string& said, Then then = Then::Stays) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    near_.reset(ends[0]);
    far_.reset(ends[1]);
    REQUIRE(::send(far_.get(), said.data(), said.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(said.size()));
    if (then == Then::Closes) ::shutdown(far_.get(), SHUT_WR);
  }
  GuestLink link(std::function<void()> alive = [] {}) { return {std::move(near_), std::move(alive)}; }
  std::string heard() const {
    std::string bytes(65536, '\0');
    const ssize_t got = ::recv(far_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

 private:
  UniqueFd near_, far_;
};

steady_clock::time_point soon() { return steady_clock::now() + milliseconds(300); }

std::string failure_of(Guest& guest) {
  const auto begin = steady_clock::now();
  std::string message;
  try {
    guest.link().hello(soon());
  } catch (const Error& error) {
    message = error.message();
  }
  CHECK(steady_clock::now() - begin < milliseconds(3000));
  return message;
}

}  // namespace

TEST_CASE("a guest is greeted, configured and handed on", "[runners][guest_link]") {
  Guest guest(welcome() + frame(channel::Type::Ready, FrameText().u64(2'000'000).text()));
  GuestLink link = guest.link();
  const GuestWelcome told = link.hello(soon());
  CHECK(told.kernel == "6.1.0");
  CHECK(told.since_boot == std::chrono::microseconds(1'500'000));
  CHECK(link.configure("fields", soon()) == std::chrono::microseconds(2'000'000));
  CHECK(link.release());
  const std::string heard = guest.heard();
  channel::ChannelHeader header{};
  REQUIRE(channel::parse_frame(heard.data(), heard.size(), header) == channel::Parsed::Frame);
  CHECK(header.type == channel::Type::Hello);
  wire::Reader reader(heard.data() + sizeof header, header.length);
  CHECK(reader.u64() == channel::kMagic);
  CHECK(reader.u32() == channel::kVersion);
  CHECK(reader.u64() > 1'600'000'000'000'000);
  CHECK(reader.str().size == 64);
}

TEST_CASE("what a guest says instead of a welcome ends in time, with a reason", "[runners][guest_link]") {
  const std::vector<std::pair<std::string, const char*>> all = {
      {"", "says nothing in time"},
      {std::string(100, 'x'), "does not speak the protocol"},
      {std::string("\xff\xff\xff\xff\x20\0\0\0\0\0\0\0", 12), "does not speak the protocol"},
      {frame(channel::Type::Data, "x", 5), "does not speak the protocol"},
      {frame(channel::Type::Ready, ""), "answers what was not asked"},
      {frame(channel::Type::Welcome, ""), "has no agent of dsec"},
      {welcome(1), "has no agent of dsec"},
      {welcome(channel::kMagic, 7), "speaks version 7"},
      {frame(channel::Type::Failed, FrameText().u32(5).str("mount").str("\x1b[1mdisk").text()),
       "cannot 'mount' '\\x1b[1mdisk': Input/output error (EIO)"},
      {frame(channel::Type::Failed, "x"), "its guest cannot"},
      {frame(channel::Type::Ended, FrameText().str("tired").text()), "its guest ended: 'tired'"},
      {welcome().substr(0, 20), "says nothing in time"}};
  for (const auto& [said, reason] : all) {
    DYNAMIC_SECTION(reason << said.size()) {
      Guest guest(said);
      CHECK_THAT(failure_of(guest), Catch::Contains(reason));
    }
  }
}

TEST_CASE("a channel that closes is told", "[runners][guest_link]") {
  Guest guest(welcome().substr(0, 20), Guest::Then::Closes);
  CHECK_THAT(failure_of(guest), Catch::Contains("closed the channel"));
}

TEST_CASE("who waits for a guest is told when its machine has ended", "[runners][guest_link]") {
  Guest guest("");
  GuestLink link = guest.link([] { throw failure("its machine ended"); });
  CHECK_THROWS_WITH(link.hello(steady_clock::now() + std::chrono::seconds(60)), "its machine ended");
}

TEST_CASE("a channel on which more has come than was asked for is not handed on", "[runners][guest_link]") {
  Guest guest(welcome() + frame(channel::Type::Done, ""));
  GuestLink link = guest.link();
  link.hello(soon());
  CHECK_THROWS_WITH(link.release(), "its guest says what was not asked");
}

}  // namespace dsec::runners
