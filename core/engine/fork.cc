#include "core/engine/fork.h"

#include <sys/random.h>

#include <array>

#include "core/base/error.h"

namespace dsec::engine {
namespace {

// machine-id(5): 32 hexadecimal digits of a random UUID.
std::string new_machine_id() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw system_error("get random bytes");
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace

SandboxSpec fork_spec(const SandboxInfo& parent, const ForkRequest& request, std::vector<Digest> layers,
                      std::string name) {
  SandboxSpec spec = parent.spec;
  spec.layers = std::move(layers);
  spec.name = std::move(name);
  spec.machine_id = new_machine_id();
  // Each has its own, unless somebody chose one.
  if (spec.hostname == parent.id) spec.hostname.clear();
  // Whoever made the parent for one command does not know of this one.
  spec.made_for_command = false;
  spec.remove_at_end = false;
  for (const auto& [key, value] : request.labels) spec.labels[key] = value;
  spec.labels[kForkedFromLabel] = parent.id;
  return spec;
}

std::vector<std::string> random_seed_files() {
  return {"/var/lib/systemd/random-seed", "/var/lib/urandom/random-seed", "/var/lib/random-seed",
          "/var/lib/misc/random-seed", "/etc/random-seed"};
}

}  // namespace dsec::engine
