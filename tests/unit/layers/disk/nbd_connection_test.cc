#include "layers/disk/nbd_connection.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "layers/disk/nbd_protocol.h"

using namespace dsec;
using namespace dsec::layers;

namespace {

constexpr std::uint64_t kSize = 1 << 20;

/// Keeps what it is given, and fails when it is asked for anything out of its bounds.
class Memory final : public BlockTarget {
 public:
  std::uint64_t size() const override { return bytes.size(); }
  void read(std::uint64_t offset, char* buffer, std::size_t size) override {
    check(offset, size, 1);
    std::memcpy(buffer, bytes.data() + offset, size);
  }
  void write(std::uint64_t offset, std::string_view given) override {
    check(offset, given.size(), 512);
    bytes.replace(offset, given.size(), given);
  }
  void clear(std::uint64_t offset, std::uint64_t size) override {
    check(offset, size, 512);
    bytes.replace(offset, size, std::string(size, '\0'));
  }
  void flush() override { ++flushes; }

  std::string bytes = std::string(kSize, '\0');
  int flushes = 0;
  bool fails = false;

 private:
  void check(std::uint64_t offset, std::uint64_t size, std::uint64_t unit) const {
    REQUIRE(offset <= bytes.size());
    REQUIRE(size <= bytes.size() - offset);
    REQUIRE(offset % unit == 0);
    REQUIRE(size % unit == 0);
    if (fails) throw failure("the disk is on fire");
  }
};

template <typename Number>
std::string big(Number number) {
  std::string bytes;
  for (std::size_t i = sizeof number; i-- > 0;) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}
std::string u16(unsigned number) { return big(static_cast<std::uint16_t>(number)); }
std::string u32(std::uint32_t number) { return big(number); }
std::string u64(std::uint64_t number) { return big(number); }

std::string option(std::uint32_t number, const std::string& data = "") {
  return u64(nbd::kOptionMagic) + u32(number) + u32(static_cast<std::uint32_t>(data.size())) + data;
}
std::string answer(std::uint32_t number, std::uint32_t type, const std::string& data = "") {
  return u64(nbd::kOptionReplyMagic) + u32(number) + u32(type) + u32(static_cast<std::uint32_t>(data.size())) + data;
}
const std::string kGo = option(nbd::option::kGo, u32(0) + u16(0));

std::string request(unsigned command, std::uint64_t offset, std::uint32_t length, unsigned flags = 0,
                    const std::string& cookie = "cookie 1") {
  return u32(nbd::kRequestMagic) + u16(flags) + u16(command) + cookie + u64(offset) + u32(length);
}
std::string reply(std::uint32_t error, const std::string& data = "", const std::string& cookie = "cookie 1") {
  return u32(nbd::kReplyMagic) + u32(error) + cookie + data;
}

/// A client that has no socket.
struct Client {
  explicit Client(bool negotiated = true) {
    take();
    if (!negotiated) return;
    connection.receive(u32(3) + kGo);
    take();
  }
  std::string take() {
    const std::string out(connection.output());
    connection.sent(out.size());
    return out;
  }
  std::string say(const std::string& bytes) {
    connection.receive(bytes);
    return take();
  }

  Memory memory;
  std::vector<std::string> log;
  NbdConnection connection{memory, [this](const std::string& what) { log.push_back(what); }};
};

}  // namespace

TEST_CASE("the handshake is fixed newstyle, and tells the export and the sizes of blocks", "[layers][disk][nbd]") {
  Memory memory;
  NbdConnection connection(memory, [](const std::string&) {});
  CHECK(connection.output() == "NBDMAGICIHAVEOPT" + u16(3));
  connection.sent(connection.output().size());
  const std::string flags = u16(1 | 4 | 8 | 32 | 64 | 256);
  connection.receive(u32(3) + kGo);
  CHECK(connection.output() ==
        answer(nbd::option::kGo, nbd::reply::kInfo, u16(0) + u64(kSize) + flags) +
            answer(nbd::option::kGo, nbd::reply::kInfo, u16(3) + u32(512) + u32(4096) + u32(32 << 20)) +
            answer(nbd::option::kGo, nbd::reply::kAck));
  Client old(false);
  CHECK(old.say(u32(1) + option(nbd::option::kExportName)) == u64(kSize) + flags + std::string(124, '\0'));
  CHECK(old.say(request(nbd::command::kFlush, 0, 0)) == reply(0));
  Client small(false);
  CHECK(small.say(u32(3) + option(nbd::option::kExportName)) == u64(kSize) + flags);
}

TEST_CASE("options that are not known, too long or malformed are refused, and the next is heard",
          "[layers][disk][nbd]") {
  Client client(false);
  CHECK(client.say(u32(3)).empty());
  CHECK(client.say(option(5)) == answer(5, nbd::reply::kUnsupported));  // STARTTLS
  CHECK(client.say(option(8)) == answer(8, nbd::reply::kUnsupported));  // STRUCTURED_REPLY
  CHECK(client.say(option(99, "what")) == answer(99, nbd::reply::kUnsupported));
  const auto go = nbd::option::kGo;
  CHECK(client.say(option(go, "x")) == answer(go, nbd::reply::kInvalid));
  CHECK(client.say(option(go, u32(0xffffffff) + u16(0))) == answer(go, nbd::reply::kInvalid));
  CHECK(client.say(option(go, u32(0) + u16(2) + u16(3))) == answer(go, nbd::reply::kInvalid));
  CHECK(client.say(option(go, u32(4) + "none" + u16(0))) == answer(go, nbd::reply::kUnknown));
  CHECK(client.say(option(nbd::option::kList, "x")) == answer(nbd::option::kList, nbd::reply::kInvalid));
  CHECK(client.say(option(nbd::option::kList)) ==
        answer(nbd::option::kList, nbd::reply::kServer, u32(0)) + answer(nbd::option::kList, nbd::reply::kAck));
  // Its data are passed over, whatever their length is said to be, and nothing of them is kept.
  CHECK(client.say(u64(nbd::kOptionMagic) + u32(7) + u32(1 << 30)) == answer(7, nbd::reply::kTooBig));
  for (int i = 0; i < 1024; ++i) CHECK(client.say(std::string(1 << 20, 'x')).empty());
  CHECK(client.say(option(99)) == answer(99, nbd::reply::kUnsupported));
  CHECK(client.say(option(nbd::option::kAbort)) == answer(nbd::option::kAbort, nbd::reply::kAck));
  CHECK(client.connection.ended());
}

TEST_CASE("what is no NBD ends the connection", "[layers][disk][nbd]") {
  SECTION("flags that nobody offered") {
    Client client(false);
    client.say(u32(4));
    CHECK(client.connection.ended());
  }
  SECTION("an option without its beginning") {
    Client client(false);
    client.say(u32(3) + std::string(16, 'x'));
    CHECK(client.connection.ended());
  }
  SECTION("an export that is not there, asked for in the old way") {
    Client client(false);
    client.say(u32(3) + option(nbd::option::kExportName, "other"));
    CHECK(client.connection.ended());
  }
  SECTION("a request without its beginning") {
    Client client;
    CHECK(client.say(std::string(28, 'x')).empty());
    CHECK(client.connection.ended());
    CHECK(client.say(request(nbd::command::kFlush, 0, 0)).empty());
  }
  SECTION("a farewell, which needs no answer") {
    Client client;
    CHECK(client.say(request(nbd::command::kDisconnect, 0, 0)).empty());
    CHECK(client.connection.ended());
  }
}

TEST_CASE("requests come in pieces or many at once, and are answered in order", "[layers][disk][nbd]") {
  Client client;
  const std::string data(4096, 'a');
  const std::string all = request(nbd::command::kWrite, 8192, 4096, 0, "write 1.") + data +
                          request(nbd::command::kRead, 8000, 400, 0, "read 1..") +
                          request(nbd::command::kTrim, 8192, 512, 0, "trim 1..") +
                          request(nbd::command::kRead, 8192, 1024, 0, "read 2..") +
                          request(nbd::command::kWriteZeroes, 9216, 512, 2, "zero 1..") +
                          request(nbd::command::kFlush, 0, 0, 0, "flush 1.");
  const std::string expected =
      reply(0, "", "write 1.") + reply(0, std::string(192, '\0') + std::string(208, 'a'), "read 1..") +
      reply(0, "", "trim 1..") + reply(0, std::string(512, '\0') + std::string(512, 'a'), "read 2..") +
      reply(0, "", "zero 1..") + reply(0, "", "flush 1.");
  const std::size_t step = GENERATE(std::size_t{1}, std::size_t{7}, std::size_t{4096}, std::size_t{100'000});
  std::string got;
  for (std::size_t at = 0; at < all.size(); at += step) got += client.say(all.substr(at, step));
  CHECK(got == expected);
  CHECK(client.memory.flushes == 1);
  CHECK(client.memory.bytes.substr(8192, 4096) ==
        std::string(512, '\0') + std::string(512, 'a') + std::string(512, '\0') + std::string(2560, 'a'));
}

TEST_CASE("a change with FUA is flushed before it is answered", "[layers][disk][nbd]") {
  Client client;
  CHECK(client.say(request(nbd::command::kWrite, 0, 512, 1) + std::string(512, 'a')) == reply(0));
  CHECK(client.say(request(nbd::command::kTrim, 0, 512, 1)) == reply(0));
  CHECK(client.say(request(nbd::command::kWriteZeroes, 0, 512, 3)) == reply(0));
  CHECK(client.memory.flushes == 3);
  CHECK(client.say(request(nbd::command::kRead, 0, 1, 1)) == reply(0, std::string(1, '\0')));
  CHECK(client.memory.flushes == 3);
}

TEST_CASE("requests out of bounds or of parts of sectors change nothing, and the next is served",
          "[layers][disk][nbd]") {
  Client client;
  const auto none = nbd::error::kNoSpace, invalid = nbd::error::kInvalid;
  const std::uint64_t most = ~std::uint64_t{0};
  for (const std::uint64_t offset : {kSize, kSize - 511, most, most - 511, std::uint64_t{1} << 63}) {
    CHECK(client.say(request(nbd::command::kRead, offset, 512)) == reply(invalid));
    CHECK(client.say(request(nbd::command::kWrite, offset, 512) + std::string(512, 'x')) == reply(none));
    CHECK(client.say(request(nbd::command::kTrim, offset, 512)) == reply(none));
    CHECK(client.say(request(nbd::command::kWriteZeroes, offset, 0xfffffe00)) == reply(none));
  }
  CHECK(client.say(request(nbd::command::kWrite, 1, 512) + std::string(512, 'x')) == reply(invalid));
  CHECK(client.say(request(nbd::command::kWrite, 0, 511) + std::string(511, 'x')) == reply(invalid));
  CHECK(client.say(request(nbd::command::kTrim, 0, 1)) == reply(invalid));
  CHECK(client.say(request(nbd::command::kRead, 0, 512, 0x8000)) == reply(invalid));
  CHECK(client.say(request(nbd::command::kWriteZeroes, 0, 512, 16)) == reply(invalid));  // FAST_ZERO
  CHECK(client.say(request(7, 0, 512)) == reply(invalid));                               // BLOCK_STATUS
  CHECK(client.say(request(0xffff, 0, 0)) == reply(invalid));
  // A payload that is too long is passed over.
  CHECK(client.say(request(nbd::command::kWrite, 0, (32u << 20) + 512)) == reply(invalid));
  for (int i = 0; i < 32; ++i) CHECK(client.say(std::string(1 << 20, 'x')).empty());
  CHECK(client.say(std::string(512, 'x') + request(nbd::command::kFlush, 0, 0)) == reply(0));
  CHECK(client.memory.bytes == std::string(kSize, '\0'));
}

TEST_CASE("what fails is an error of the disk to the machine, and its reason is told here", "[layers][disk][nbd]") {
  Client client;
  client.memory.fails = true;
  CHECK(client.say(request(nbd::command::kRead, 0, 4096)) == reply(nbd::error::kIo));
  CHECK(client.say(request(nbd::command::kWrite, 0, 512) + std::string(512, 'x')) == reply(nbd::error::kIo));
  CHECK(client.log == std::vector<std::string>(2, "the disk is on fire"));
  client.memory.fails = false;
  CHECK(client.say(request(nbd::command::kRead, 0, 1)) == reply(0, std::string(1, '\0')));
}

TEST_CASE("who does not take answers gets no more of them until he does", "[layers][disk][nbd]") {
  Client client;
  std::string all;
  for (int i = 0; i < 64; ++i) all += request(nbd::command::kRead, 0, kSize);
  client.connection.receive(all);
  CHECK(client.connection.output().size() < NbdConnection::kFullOutput + kSize + 100);
  CHECK_FALSE(client.connection.wants_input());
  std::size_t taken = 0;
  for (int i = 0; i < 200 && !client.connection.output().empty(); ++i) {
    taken += client.take().size();
    client.connection.resume();
  }
  CHECK(taken == 64 * (16 + kSize));
  CHECK(client.connection.wants_input());
}

TEST_CASE("whoever asks for much work gets it in turns", "[layers][disk][nbd]") {
  Client client;
  constexpr unsigned kMany = 1000;
  std::string all;
  for (unsigned i = 0; i < kMany; ++i)
    all += request(nbd::command::kWriteZeroes, 0, kSize, i % 2 ? nbd::command::kNoHole : 0);
  std::size_t answered = client.say(all).size() / 16, turns = 1;
  CHECK(answered * kSize <= NbdConnection::kMostWork + kSize);
  for (; client.connection.more(); ++turns) {
    CHECK_FALSE(client.connection.wants_input());
    client.connection.resume();
    answered += client.take().size() / 16;
  }
  CHECK(answered == kMany);
  CHECK(turns > kMany * kSize / (NbdConnection::kMostWork + kSize));
  CHECK(client.connection.wants_input());
}

TEST_CASE("noise is refused or served within bounds", "[layers][disk][nbd]") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Client client(random() % 2 == 0);
    for (int i = 0; i < 20 && !client.connection.ended(); ++i) {
      std::string bytes = request(random() % 9, random(), random() % 3 ? random() % 8192 : random(), random() % 8);
      for (unsigned flips = random() % 3; flips > 0; --flips)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      bytes.append(random() % 2000, static_cast<char>(random()));
      client.say(bytes);
    }
  }
}
