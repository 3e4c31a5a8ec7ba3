#include "core/remote/edge_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <future>
#include <string>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::remote {
namespace {

TEST_CASE("who sends to an edge that is lost waits no longer than who listens to it", "[remote]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd edge(ends[1]);
  FrameStream stream{UniqueFd(ends[0])};
  // Nobody reads it.
  auto sending = std::async(std::launch::async, [&] {
    for (;;) stream.send(FrameKind::Stdin, std::string(64 << 10, 'x'));
  });
  for (pollfd room{stream.descriptor(), POLLOUT, 0}; ::poll(&room, 1, 0) == 1;) ::usleep(1000);
  write_all(edge.get(), std::string("\x01\xff\xff\xff\xff", 5));
  CHECK_THROWS_WITH(stream.next(), Catch::Contains("too long"));
  if (sending.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
    ::shutdown(edge.get(), SHUT_RDWR);
    FAIL("it still waits");
  }
  CHECK_THROWS_WITH(sending.get(), Catch::Contains("takes no more"));
}

}  // namespace
}  // namespace dsec::remote
