#include "runners/vm/firecracker.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "runners/vm/unix_http.h"
#include "runners/vm/vmm_socket.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

// Over virtio-mmio; the channel, the balloon and the random numbers are three.
constexpr std::size_t kMostDevices = 17 - 3;
constexpr std::uint32_t kGuestCid = 3;
constexpr std::uint64_t kMebibyte = 1ull << 20;
// Of what a second allows, all may come at once.
constexpr std::uint64_t kRefill = 1000;

Json rate_limiter(const DriveRate& rate) {
  const auto bucket = [](std::uint64_t size) { return Json{{"size", size}, {"refill_time", kRefill}}; };
  Json limiter = Json::object();
  if (rate.bytes) limiter["bandwidth"] = bucket(rate.bytes);
  if (rate.operations) limiter["ops"] = bucket(rate.operations);
  return limiter;
}

class Control final : public FirecrackerControl {
 public:
  Control(fs::path socket, milliseconds patience) : socket_(std::move(socket)) {
    // It listens before it can answer.
    const auto until = steady_clock::now() + patience;
    for (;;) {
      try {
        const UniqueFd listening = connect_to_vmm(
            socket_, std::max(milliseconds(0), std::chrono::ceil<milliseconds>(until - steady_clock::now())));
        break;
      } catch (const Error&) {
        if (steady_clock::now() >= until) throw;
      }
    }
  }

  void boot(const MachineSpec& spec) override {
    if (state() != MachineState::NotStarted) return resume();
    put("/machine-config", {{"vcpu_count", spec.cpus}, {"mem_size_mib", spec.memory / kMebibyte}, {"smt", false}});
    Json source{{"kernel_image_path", spec.kernel.native()}, {"boot_args", spec.command_line}};
    if (!spec.initramfs.empty()) source["initrd_path"] = spec.initramfs.native();
    put("/boot-source", source);
    for (const MachineDrive& drive : spec.drives) {
      Json body{{"drive_id", drive.id},
                {"is_root_device", false},
                {"path_on_host", drive.file.native()},
                {"is_read_only", drive.read_only},
                {"cache_type", drive.read_only ? "Unsafe" : "Writeback"}};
      if (drive.rate != DriveRate{}) body["rate_limiter"] = rate_limiter(drive.rate);
      put("/drives/" + drive.id, body);
    }
    for (const MachinePmem& pmem : spec.pmem)
      put("/pmem/" + pmem.id, {{"id", pmem.id}, {"path_on_host", pmem.file.native()}, {"read_only", true}});
    if (!spec.channel.empty()) put("/vsock", {{"guest_cid", kGuestCid}, {"uds_path", spec.channel.native()}});
    put("/balloon", {{"amount_mib", 0},
                     {"deflate_on_oom", true},
                     {"stats_polling_interval_s", 1},
                     {"free_page_reporting", spec.reports_free_pages}});
    put("/entropy", Json::object());
    if (!spec.console.empty()) put("/serial", {{"serial_out_path", spec.console.native()}});
    put("/actions", {{"action_type", "InstanceStart"}});
  }

  MachineState state() override {
    const std::string word = json_string(get("/"), "state");
    if (word == "Not started") return MachineState::NotStarted;
    if (word == "Running") return MachineState::Running;
    if (word == "Paused") return MachineState::Paused;
    throw failure("Firecracker says that the machine is " + quote(word));
  }
  void pause() override { send("PATCH", "/vm", {{"state", "Paused"}}); }
  void resume() override { send("PATCH", "/vm", {{"state", "Resumed"}}); }

  void set_balloon(std::uint64_t bytes) override { send("PATCH", "/balloon", {{"amount_mib", bytes / kMebibyte}}); }

  GuestMemory memory() override {
    const Json told = get("/balloon/statistics");
    const auto figure = [&](const char* name) -> std::optional<std::uint64_t> {
      const auto found = told.find(name);
      if (found == told.end() || !found->is_number_unsigned()) return std::nullopt;
      return found->get<std::uint64_t>();
    };
    return {.balloon = json_u64(told, "actual_mib") * kMebibyte,
            .total = figure("total_memory"),
            .available = figure("available_memory"),
            .free = figure("free_memory"),
            .caches = figure("disk_caches")};
  }

  void save(const MachineSnapshot& to) override { create(to, "Full"); }
  void save_difference(const MachineSnapshot& to) override { create(to, "Diff"); }

  void load(const MachineSnapshot& from) override { load(from, {}); }
  void load(const MachineSnapshot& from, const FirecrackerLoad& how) override {
    Json body{{"snapshot_path", from.state.native()},
              {"mem_backend",
               {{"backend_type", how.backend == MemoryBackend::File ? "File" : "Uffd"},
                {"backend_path", from.memory.native()}}},
              {"track_dirty_pages", how.track_writes},
              {"resume_vm", how.resume}};
    if (!how.channel.empty()) body["vsock_override"] = {{"uds_path", how.channel.native()}};
    send("PUT", "/snapshot/load", body, kSnapshotPatience);
  }

  void limit_drive(const std::string& id, const DriveRate& rate) override {
    send("PATCH", "/drives/" + id, {{"drive_id", id}, {"rate_limiter", rate_limiter(rate)}});
  }
  void flush_metrics() override { put("/actions", {{"action_type", "FlushMetrics"}}); }
  std::string version() override { return json_string(get("/version"), "firecracker_version"); }

  // It has no request for that: whoever started it kills it.
  void quit() override { throw failure("Firecracker is not asked to end, but killed"); }

 private:
  void create(const MachineSnapshot& to, const char* type) {
    send("PUT", "/snapshot/create",
         {{"snapshot_type", type}, {"snapshot_path", to.state.native()}, {"mem_file_path", to.memory.native()}},
         kSnapshotPatience);
  }

  void put(const std::string& path, const Json& body) { send("PUT", path, body); }
  void send(const std::string& method, const std::string& path, const Json& body,
            milliseconds patience = kControlPatience) {
    const UnixAnswer answer = send_over_unix(socket_, method, path, canonical_json(body), patience);
    if (answer.status != 204) refuse(method, path, answer);
  }
  Json get(const std::string& path) {
    const UnixAnswer answer = send_over_unix(socket_, "GET", path, "", kControlPatience);
    if (answer.status != 200) refuse("GET", path, answer);
    return attempt("Firecracker's answer to GET " + path, [&] {
      Json body = parse_json(answer.body, "body");
      if (!body.is_object()) throw failure("it is no object");
      return body;
    });
  }

  [[noreturn]] static void refuse(const std::string& method, const std::string& path, const UnixAnswer& answer) {
    std::string why = "it answers with status " + std::to_string(answer.status);
    try {
      why = json_string(parse_json(answer.body, "body"), "fault_message");
    } catch (const std::exception&) {
      // What is no answer of Firecracker's has its status for a reason.
    }
    // One line, however long a report of the other end is.
    std::replace(why.begin(), why.end(), '\n', ' ');
    throw failure(why.substr(0, 500)).context("Firecracker refuses " + method + " " + path);
  }

  const fs::path socket_;
};

bool is_jail_name(const std::string& id) {
  return !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  });
}

class Firecracker final : public Vmm {
 public:
  Firecracker(fs::path program, std::optional<Jail> jail) : program_(std::move(program)), jail_(std::move(jail)) {}

  const std::string& name() const override { return name_; }

  void check(const MachineSpec& spec) const override {
    check_machine(spec);
    if (spec.drives.size() + spec.pmem.size() > kMostDevices)
      throw failure("the layers have " + std::to_string(spec.drives.size() + spec.pmem.size()) +
                    " files, and Firecracker has room for " + std::to_string(kMostDevices))
          .hint("import with a larger --collapse-limit makes fewer of them");
    for (const MachineDrive& drive : spec.drives) {
      if (!drive.nbd.empty()) throw failure("Firecracker takes no drive that is served by NBD");
      if (drive.file.empty()) throw failure("Firecracker has no drives without a file");
    }
    if (spec.control.empty()) throw failure("Firecracker needs a socket for its API");
    if (jail_ && !is_jail_name(jail_->id)) throw failure(quote(jail_->id) + " is no name for a jail");
    if (jail_ && jail_->uid == 0) throw failure("Firecracker is not to run as root");
  }

  std::vector<std::string> command(const MachineSpec& spec) const override {
    check(spec);
    std::vector<std::string> argv;
    const auto add = [&](std::initializer_list<std::string> words) { argv.insert(argv.end(), words); };
    if (jail_) {
      add({jail_->jailer.native(), "--id", jail_->id, "--exec-file", program_.native()});
      add({"--uid", std::to_string(jail_->uid), "--gid", std::to_string(jail_->gid)});
      add({"--chroot-base-dir", jail_->base.native(), "--new-pid-ns", "--cgroup-version", "2"});
      if (!jail_->network_namespace.empty()) add({"--netns", jail_->network_namespace.native()});
      if (!jail_->parent_cgroup.empty()) add({"--parent-cgroup", jail_->parent_cgroup});
      for (const std::string& value : jail_->cgroup_values) add({"--cgroup", value});
      if (jail_->open_files) add({"--resource-limit", "no-file=" + std::to_string(jail_->open_files)});
      add({"--"});
    } else {
      add({program_.native()});
    }
    add({"--api-sock", spec.control.native()});
    return argv;
  }

  std::unique_ptr<MachineControl> control(const fs::path& socket, milliseconds patience) const override {
    return connect_firecracker(socket, patience);
  }

 private:
  const std::string name_ = "firecracker";
  const fs::path program_;
  const std::optional<Jail> jail_;
};

// Empty at the end of the stream.
std::string read_line(int socket, std::size_t limit, steady_clock::time_point until) {
  std::string line;
  while (!line.ends_with('\n')) {
    // Byte for byte: what follows the line belongs to whoever gets the connection.
    char byte = 0;
    const ssize_t got = ::recv(socket, &byte, 1, MSG_DONTWAIT);
    if (got == 0) return {};
    if (got == 1) {
      line += byte;
      if (line.size() > limit) throw failure("its answer is no line");
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == ECONNRESET) return {};
    if (errno != EAGAIN) throw system_error("read its answer");
    const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now()).count();
    pollfd ready{socket, POLLIN, 0};
    if (left <= 0) throw failure("it gives no answer in time");
    (void)::poll(&ready, 1, static_cast<int>(left));
  }
  return line;
}

}  // namespace

std::unique_ptr<Vmm> make_firecracker(fs::path program, std::optional<Jail> jail) {
  return std::make_unique<Firecracker>(std::move(program), std::move(jail));
}

fs::path root_of_jail(const Jail& jail, const fs::path& program) {
  return jail.base / program.filename() / jail.id / "root";
}

std::unique_ptr<FirecrackerControl> connect_firecracker(const fs::path& socket, milliseconds patience) {
  return std::make_unique<Control>(socket, patience);
}

UniqueFd connect_vsock(const fs::path& channel, std::uint32_t port, milliseconds patience) {
  return attempt("cannot reach port " + std::to_string(port) + " of the guest", [&] {
    const auto until = steady_clock::now() + patience;
    for (;;) {
      const auto left = std::max(milliseconds(1), std::chrono::ceil<milliseconds>(until - steady_clock::now()));
      UniqueFd connection = connect_to_vmm(channel, left);
      write_all(connection.get(), "CONNECT " + std::to_string(port) + "\n");
      // An answer that is on its way is worth a little more.
      const std::string answer =
          read_line(connection.get(), 32, std::max(until, steady_clock::now() + milliseconds(500)));
      if (answer.starts_with("OK ")) return connection;
      if (!answer.empty()) throw failure("it answers " + quote(answer));
      // Closed without a word: nobody listens there yet.
      if (steady_clock::now() >= until) throw failure("nobody listens there");
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
}

}  // namespace dsec::runners
