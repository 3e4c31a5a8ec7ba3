#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "layers/disk/nbd_connection.h"

namespace {

using namespace dsec::layers;

constexpr std::size_t kSize = 64 << 10;

/// Whoever asks for something beyond it reads or writes out of its memory, which the sanitizer sees.
class Memory final : public BlockTarget {
 public:
  std::uint64_t size() const override { return kSize; }
  void read(std::uint64_t offset, char* buffer, std::size_t size) override {
    std::memcpy(buffer, bytes_.get() + offset, size);
  }
  void write(std::uint64_t offset, std::string_view bytes) override {
    std::memcpy(bytes_.get() + offset, bytes.data(), bytes.size());
  }
  void clear(std::uint64_t offset, std::uint64_t size) override { std::memset(bytes_.get() + offset, 0, size); }
  void flush() override {}

 private:
  const std::unique_ptr<char[]> bytes_ = std::make_unique<char[]>(kSize);
};

}  // namespace

// The first byte says in what pieces the rest comes, and whether the handshake is over.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  if (size < 1) return 0;
  Memory memory;
  NbdConnection connection(memory, [](const std::string&) {});
  std::string input(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const std::string go("\0\0\0\3IHAVEOPT\0\0\0\7\0\0\0\6\0\0\0\0\0\0", 26);
  if (bytes[0] & 1) input.insert(0, go);
  const std::size_t step = 1 + std::size_t{bytes[0]} * 8;
  for (std::size_t at = 0; at < input.size() && !connection.ended(); at += step) {
    connection.receive(std::string_view(input).substr(at, step));
    while (!connection.output().empty()) {
      connection.sent(std::min<std::size_t>(connection.output().size(), 1 << 20));
      connection.resume();
    }
  }
  return 0;
}
