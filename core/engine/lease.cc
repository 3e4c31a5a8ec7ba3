#include "core/engine/lease.h"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

constexpr int kSchema = 1;

const std::string& current_boot_id() {
  static const std::string id = [] {
    std::string text = read_file("/proc/sys/kernel/random/boot_id", 128);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }();
  return id;
}

}  // namespace

ProcessIdentity ProcessIdentity::of(pid_t pid) { return {current_boot_id(), pid, process_start_ticks(pid)}; }

ProcessIdentity ProcessIdentity::self() {
  static const ProcessIdentity identity = of(::getpid());
  // A forked child inherits the static.
  return identity.pid == ::getpid() ? identity : of(::getpid());
}

bool ProcessIdentity::alive() const { return pid > 0 && start_ticks != 0 && *this == of(pid); }

namespace {

std::string text_of(const Lease& lease) {
  const ProcessIdentity& creator = lease.creator;
  const Json json = {
      {"schema", kSchema},
      {"id", lease.id},
      {"creator", {{"boot_id", creator.boot_id}, {"pid", creator.pid}, {"start_ticks", creator.start_ticks}}},
      {"created_ms", std::chrono::duration_cast<std::chrono::milliseconds>(lease.created.time_since_epoch()).count()},
      {"spec", to_json(lease.spec)}};
  return canonical_json(json) + "\n";
}

}  // namespace

Lease::Lease(std::string name, ProcessIdentity maker, std::chrono::system_clock::time_point now, SandboxSpec wanted)
    : id(std::move(name)), creator(std::move(maker)), created(now), spec(std::move(wanted)) {
  if (spec.hostname.empty()) spec.hostname = id;
}

void Lease::write(const fs::path& directory) const {
  // The directory still has its temporary name, so nobody reads a half-written lease.
  const UniqueFd file = open_file(directory / "lease.json", O_WRONLY | O_CREAT | O_EXCL, 0600);
  write_all(file.get(), text_of(*this));
}

void Lease::replace(const fs::path& directory) const {
  write_file_atomic(directory / "lease.json", text_of(*this), 0600);
}

std::optional<Lease> Lease::read(const fs::path& directory) {
  const fs::path file = directory / "lease.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  const Json json = parse_json(read_file(file), file.native());
  return attempt("lease " + quote(file.native()) + " is not valid", [&] {
    if (json_u64(json, "schema") != kSchema) throw failure("it has an unknown schema");
    Lease lease;
    lease.id = json_string(json, "id");
    const Json process = json.value("creator", Json::object());
    lease.creator = {json_string(process, "boot_id"), static_cast<pid_t>(json_u64(process, "pid")),
                     json_u64(process, "start_ticks")};
    lease.created = std::chrono::system_clock::time_point(std::chrono::milliseconds(json_u64(json, "created_ms")));
    lease.spec = sandbox_spec_from_json(json.value("spec", Json::object()));
    return lease;
  });
}

}  // namespace dsec::engine
