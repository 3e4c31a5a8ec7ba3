#include "runners/vm/full/seed.h"

#include <catch2/catch.hpp>
#include <map>

namespace dsec::runners {
namespace {

// As ECMA-119 has it, from the volume descriptor on.
class Disc {
 public:
  explicit Disc(std::string bytes) : bytes_(std::move(bytes)) {
    REQUIRE(bytes_.size() % 2048 == 0);
    REQUIRE(bytes_.substr(kVolume, 7) == std::string("\1CD001\1", 7));
    REQUIRE(number(kVolume + 80, 4) * 2048 == bytes_.size());
    REQUIRE(number(kVolume + 128, 2) == 2048);
  }
  std::string label() const { return bytes_.substr(kVolume + 40, 32); }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> found;
    std::uint64_t at = number(kVolume + 156 + 2, 4) * 2048;
    for (const std::uint64_t end = at + 2048; at < end && bytes_[at]; at += number(at, 1)) {
      const std::string name = bytes_.substr(at + 33, number(at + 32, 1));
      if (number(at + 25, 1) & 2) continue;
      found[name] = bytes_.substr(number(at + 2, 4) * 2048, number(at + 10, 4));
    }
    return found;
  }

 private:
  static constexpr std::uint64_t kVolume = 16 * 2048;
  std::uint64_t number(std::uint64_t at, std::size_t size) const {
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes_.at(at + i));
    return value;
  }
  std::string bytes_;
};

TEST_CASE("a seed is a disc that has what cloud-init looks for", "[runners][fullvm]") {
  const std::string long_text(5000, 'x');
  const Disc disc(make_seed(seed_files(long_text, "abc234", "pc")));
  CHECK(disc.label().substr(0, 7) == "cidata ");
  CHECK(disc.files() == std::map<std::string, std::string>{
                            {"USER-DATA;1", long_text}, {"META-DATA;1", "instance-id: abc234\nlocal-hostname: pc\n"}});
}

TEST_CASE("the order in which files are given is not that on the disc", "[runners][fullvm]") {
  CHECK(make_seed({{"a", "1"}, {"b", "2"}}) == make_seed({{"b", "2"}, {"a", "1"}}));
}

}  // namespace
}  // namespace dsec::runners
