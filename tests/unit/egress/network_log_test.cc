#include "runners/egress/gateway/network_log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/network_log.h"

namespace dsec::egress {
namespace {

namespace fs = std::filesystem;

/// A directory with a log in it.
class Place {
 public:
  Place() {
    char name[] = "/tmp/dsec-log-XXXXXX";
    if (!::mkdtemp(name)) throw system_error("make a directory");
    directory_ = name;
    fd_ = open_file(file(), O_RDWR | O_CREAT | O_APPEND, 0600);
  }
  ~Place() { fs::remove_all(directory_); }
  fs::path file() const { return directory_ / engine::kNetworkLog; }
  int fd() const { return fd_.get(); }
  engine::NetworkLogContents read() const { return engine::read_network_log(directory_); }

 private:
  fs::path directory_;
  UniqueFd fd_;
};

TEST_CASE("another process goes on with a log, and takes away what the one before did not finish", "[egress][log]") {
  const Place place;
  NetworkLog(place.fd(), "box").write({{"verdict", "allow"}, {"host", "a.example"}}, false);
  write_all(place.fd(), R"({"verdict":"al)");
  NetworkLog(place.fd(), "box").write({{"verdict", "deny"}, {"port", 80}}, true);
  const engine::NetworkLogContents read = place.read();
  CHECK(read.damage.empty());
  REQUIRE(read.events.size() == 2);
  CHECK(read.events[0].host == "a.example");
  CHECK(read.events[1].port == 80);
}

TEST_CASE("what is denied fills half of a log, and what did not fit is counted", "[egress][log]") {
  const Place place;
  const std::string reason(30'000, 'x');
  std::uint64_t lost = 0, denied = 0, allowed = 0;
  {
    NetworkLog log(place.fd(), "box");
    for (int i = 0; i < 700; ++i) log.write({{"verdict", "deny"}, {"reason", reason}}, true);
    for (int i = 0; i < 100; ++i) log.write({{"verdict", "allow"}, {"reason", reason}}, false);
    log.lose(3);
  }
  const engine::NetworkLogContents read = place.read();
  CHECK(read.damage.empty());
  for (const engine::NetworkEvent& event : read.events) {
    lost += event.lost;
    denied += event.verdict == "deny";
    allowed += event.verdict == "allow";
  }
  CHECK(allowed == 100);
  CHECK(denied > 500);
  CHECK(denied + lost == 703);
}

TEST_CASE("a log that is none is not written to", "[egress][log]") {
  const Place place;
  write_all(place.fd(), "{\"verdict\":\"allow\"}\n");
  CHECK_THROWS_AS(NetworkLog(place.fd(), "box"), Error);
  CHECK(read_file(place.file(), 100) == "{\"verdict\":\"allow\"}\n");
}

TEST_CASE("a changed record is damage, which the reader tells", "[egress][log]") {
  const Place place;
  {
    NetworkLog log(place.fd(), "box");
    for (int i = 0; i < 3; ++i) log.write({{"verdict", "allow"}, {"port", 80 + i}}, false);
  }
  std::string text = read_file(place.file(), 10'000);
  text.replace(text.find(":81,"), 4, ":91,");
  write_all(open_file(place.file(), O_WRONLY | O_TRUNC).get(), text);
  const engine::NetworkLogContents read = place.read();
  CHECK(read.events.size() == 1);
  CHECK(read.damage.find("line 3") != std::string::npos);
}

}  // namespace
}  // namespace dsec::egress
