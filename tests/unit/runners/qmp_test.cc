#include "runners/vm/qmp.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include <sys/stat.h>

#include "core/base/child_process.h"
#include "tests/support/error_message.h"

namespace dsec::runners {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kGreeting[] =
    R"({"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "x"}, "capabilities": ["oob"]}})"
    "\r\n";

// The other end of a monitor: reads lines, says what it is told to.
class Monitor {
 public:
  explicit Monitor(std::function<void(Monitor&)> play) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    near_.reset(ends[0]);
    far_.reset(ends[1]);
    thread_ = std::thread([this, play = std::move(play)] {
      play(*this);
      ::shutdown(far_.get(), SHUT_RDWR);
    });
  }
  ~Monitor() {
    near_.reset();
    thread_.join();
  }
  UniqueFd take() { return std::move(near_); }

  // False when nobody reads any more.
  bool say(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t sent = ::send(far_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  Json hear() {
    for (;;) {
      if (const auto end = heard_.find('\n'); end != std::string::npos) {
        const Json message = Json::parse(heard_.substr(0, end));
        heard_.erase(0, end + 1);
        return message;
      }
      char chunk[4096];
      const ssize_t got = ::recv(far_.get(), chunk, sizeof chunk, 0);
      if (got <= 0) return {};
      heard_.append(chunk, static_cast<std::size_t>(got));
    }
  }
  void answer(const Json& request, const std::string& rest) const {
    if (request.is_object()) say(R"({"id": )" + request["id"].dump() + ", " + rest + "}\r\n");
  }
  void greet() {
    say(kGreeting);
    answer(hear(), R"("return": {})");
  }
  void stay_silent() const {
    char byte;
    while (::recv(far_.get(), &byte, 1, 0) > 0) continue;
  }

 private:
  UniqueFd near_, far_;
  std::string heard_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("a monitor tells its version and answers", "[runners][qmp]") {
  Json asked;
  Monitor monitor([&](Monitor& there) {
    there.greet();
    asked = there.hear();
    there.answer(asked, R"("return": {"status": "running"})");
  });
  Qmp qmp(monitor.take(), milliseconds(5000));
  CHECK(qmp.version() == "7.2.22");
  CHECK(qmp.execute("query-status", milliseconds(5000))["status"] == "running");
  CHECK(asked["execute"] == "query-status");
  CHECK_FALSE(asked.contains("arguments"));
}

TEST_CASE("a refusal has QEMU's own words, and the connection goes on", "[runners][qmp]") {
  Monitor monitor([](Monitor& there) {
    there.greet();
    there.answer(there.hear(), R"("error": {"class": "GenericError", "desc": "Device 'x' not found"})");
    there.answer(there.hear(), R"("return": {})");
  });
  Qmp qmp(monitor.take(), milliseconds(5000));
  CHECK(message_of([&] {
          qmp.execute("qom-get", {{"path", "x"}}, milliseconds(5000));
        }) == "QEMU does not carry out 'qom-get': Device 'x' not found");
  CHECK_NOTHROW(qmp.execute("cont", milliseconds(5000)));
}

TEST_CASE("events between request and answer are kept in their order", "[runners][qmp]") {
  Monitor monitor([](Monitor& there) {
    there.greet();
    const Json request = there.hear();
    there.say(R"({"event": "STOP", "timestamp": {}})"
              "\r\n"
              R"({"event": "SHUTDOWN", "data": {"guest": true}})"
              "\r\n");
    there.answer(request, R"("return": {})");
    there.say(R"({"event": "RESUME")");
    std::this_thread::sleep_for(milliseconds(20));
    there.say("}\r\n");
    there.stay_silent();
  });
  Qmp qmp(monitor.take(), milliseconds(5000));
  qmp.execute("stop", milliseconds(5000));
  CHECK(qmp.next_event(milliseconds(1000))->name == "STOP");
  const auto shutdown = qmp.next_event(milliseconds(1000));
  CHECK(shutdown->name == "SHUTDOWN");
  CHECK(shutdown->data == R"({"guest":true})");
  CHECK(qmp.next_event(milliseconds(1000))->name == "RESUME");
  CHECK_FALSE(qmp.next_event(milliseconds(10)));
}

TEST_CASE("a descriptor goes with its command", "[runners][qmp]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  ino_t passed = 0;
  std::thread thread([&] {
    const auto say = [&](const std::string& text) { ::send(far.get(), text.data(), text.size(), MSG_NOSIGNAL); };
    say(kGreeting);
    for (int id = 1; id <= 2; ++id) {
      char bytes[4096];
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
      iovec part{bytes, sizeof bytes};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      if (::recvmsg(far.get(), &message, MSG_CMSG_CLOEXEC) <= 0) return;
      if (const cmsghdr* head = CMSG_FIRSTHDR(&message)) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
        const UniqueFd owned(fd);
        struct stat info = {};
        if (::fstat(fd, &info) == 0) passed = info.st_ino;
      }
      say(R"({"return": {}, "id": )" + std::to_string(id) + "}\r\n");
    }
  });
  Qmp qmp(std::move(near), milliseconds(5000));
  const auto pipe = make_pipe();
  struct stat info = {};
  REQUIRE(::fstat(pipe.first.get(), &info) == 0);
  qmp.execute("getfd", {{"fdname", "snapshot"}}, milliseconds(5000), pipe.first.get());
  thread.join();
  CHECK(passed == info.st_ino);
}

TEST_CASE("what a hostile or broken monitor does ends in time, with a reason", "[runners][qmp]") {
  struct Hostile {
    const char* name;
    std::function<void(Monitor&)> play;
    const char* reason;
  };
  const auto flood = [](Monitor& there, const std::string& text) {
    while (there.say(text)) continue;
  };
  const std::vector<Hostile> all = {
      {"silence", [](Monitor& there) { there.stay_silent(); }, "no answer in time"},
      {"closed", [](Monitor&) {}, "closed the connection"},
      {"garbage",
       [](Monitor& there) {
         there.say("\x01\xff{{{\n");
         there.stay_silent();
       },
       "no JSON"},
      {"an array",
       [](Monitor& there) {
         there.say("[1,2]\n");
         there.stay_silent();
       },
       "no object"},
      {"a number",
       [](Monitor& there) {
         there.say(R"({"QMP": 5})"
                   "\n");
         there.stay_silent();
       },
       "not QMP's"},
      {"no version",
       [](Monitor& there) {
         there.say(R"({"QMP": {"version": []}})"
                   "\n");
         there.stay_silent();
       },
       "version"},
      {"an endless line", [&](Monitor& there) { flood(there, std::string(65536, 'x')); }, "does not end"},
      {"deep nesting",
       [](Monitor& there) {
         there.say(std::string(100000, '[') + "\n");
         there.stay_silent();
       },
       "no JSON"},
      {"endless events",
       [&](Monitor& there) {
         there.say(kGreeting);
         flood(there, R"({"event": "NICE", "data": {}})"
                      "\r\n");
       },
       "no answer in time"},
      {"another's answer",
       [](Monitor& there) {
         there.say(kGreeting);
         there.hear();
         there.say(R"({"return": {}, "id": 77})"
                   "\r\n");
         there.stay_silent();
       },
       "what was not asked"},
      {"neither result nor error",
       [](Monitor& there) {
         there.say(kGreeting);
         there.answer(there.hear(), R"("error": "no")");
         there.stay_silent();
       },
       "neither a result nor an error"},
  };
  for (const Hostile& hostile : all) {
    DYNAMIC_SECTION(hostile.name) {
      Monitor monitor(hostile.play);
      const auto begin = steady_clock::now();
      const std::string message = message_of([&] { Qmp(monitor.take(), milliseconds(300)); });
      CHECK_THAT(message, Catch::Contains(hostile.reason));
      CHECK(steady_clock::now() - begin < milliseconds(3000));
    }
  }
}

TEST_CASE("a connection that was lost is not used again", "[runners][qmp]") {
  Monitor monitor([](Monitor& there) {
    there.greet();
    there.stay_silent();
  });
  Qmp qmp(monitor.take(), milliseconds(5000));
  CHECK_THAT(message_of([&] { qmp.execute("cont", milliseconds(50)); }), Catch::Contains("no answer in time"));
  CHECK_THAT(message_of([&] { qmp.execute("cont", milliseconds(50)); }), Catch::Contains("lost before"));
}

}  // namespace dsec::runners
