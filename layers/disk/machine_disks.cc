#include "layers/disk/machine_disks.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/give_up_rights.h"
#include "core/base/json.h"
#include "core/base/progress.h"
#include "core/base/resident.h"
#include "layers/disk/disk_files.h"
#include "layers/disk/disk_protocol.h"
#include "layers/disk/disk_stack.h"
#include "layers/overlaybd/create.h"
#include "layers/overlaybd/new_file.h"
#include "layers/overlaybd/uuid.h"

namespace dsec::layers {
namespace fs = std::filesystem;
using overlaybd::SealedLayer;
namespace {

constexpr std::chrono::seconds kPatience{10};

Resident server_of(const fs::path& disk) {
  const std::string name = disk.filename();
  return {.title = "server of the disk",
          .program = kDiskProgram,
          .run = disk.parent_path(),
          .socket = name + ".control",
          .lock = name + ".lock",
          .log = name + ".log"};
}

Json answer_of(int socket) {
  const std::optional<std::string> text = receive_message(socket);
  if (!text) throw failure("the server of the disk broke off");
  Json json = parse_json(*text, "the answer of the disk's server");
  if (json_u64(json, "protocol") != kDiskProtocol)
    throw failure("the server of the disk is of another version of dsec").hint("it ends with its machine");
  if (json.contains("error")) throw failure(json_string(json, "error"));
  return json;
}

// Nobody may change it any more, whoever has its name.
void make_immutable(int file) {
  if (::geteuid() == 0 && ::fchown(file, 0, 0) != 0) throw system_error("own a layer");
  if (::fchmod(file, 0444) != 0) throw system_error("protect a layer");
}

void give_to_server(const fs::path& path) {
  if (::geteuid() == 0 && ::lchown(path.c_str(), kNobody, kNobody) != 0)
    throw system_error("give " + quote(path.native()) + " to the server of the disk");
}

void link_layer(const fs::path& from, const fs::path& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return;
  const int error = errno;
  Error told = system_error("link " + quote(from.native()), error);
  if (error == EXDEV) told.hint("layers of a disk and the disk have to be on one filesystem");
  throw told;
}

// The directory as a whole, or nothing.
void put_in_place(const fs::path& made, const fs::path& target) {
  if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST) throw usage_error(quote(target.native()) + " exists");
  throw system_error("make " + quote(target.native()));
}

UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy) throw system_error("duplicate a descriptor");
  return copy;
}

class ServedDisks final : public engine::MachineDisks {
 public:
  void pack(const fs::path& image, const fs::path& layer) override {
    overlaybd::refuse_existing(layer);
    TempFile file(layer.parent_path());
    overlaybd::NewDevice device;
    device.raw = image;
    device.layer.uuid = overlaybd::random_uuid();
    Progress silent;
    overlaybd::create_sealed(device, file.fd(), silent);
    make_immutable(file.fd());
    overlaybd::publish_new(file, layer);
  }

  void create(const fs::path& disk, const New& wanted) override {
    TempDirectory made(disk.parent_path());
    DiskFacts facts;
    std::string parent;
    const auto stand_on = [&](const SealedLayer& layer) {
      parent = layer.facts().uuid;
      if (layer.facts().size > 0) facts.size = layer.facts().size;
    };
    for (const int fd : wanted.below) {
      const SealedLayer layer(overlaybd::open_layer_file(duplicate(fd), "a layer below the disk"));
      stand_on(layer);
      facts.below.push_back(layer.facts().uuid);
    }
    for (const fs::path& path : wanted.layers) {
      stand_on(SealedLayer(overlaybd::open_layer_file(path)));
      facts.layers.push_back(facts.layers.size() + 1);
      link_layer(path, layer_file(made.path(), facts.layers.back()));
    }
    if (wanted.size > 0 && wanted.size < facts.size)
      throw usage_error("a disk of " + std::to_string(wanted.size) + " bytes cannot hold layers of " +
                        std::to_string(facts.size));
    if (wanted.size > 0) facts.size = wanted.size;
    if (facts.size == 0 || facts.size % overlaybd::kSector != 0)
      throw usage_error("a disk of " + std::to_string(facts.size) + " bytes has no whole number of sectors");
    facts.top = facts.layers.size() + 1;
    make_top(made.path(), facts.top, facts.size, parent);
    // Like its lease: after a power cut there is no machine that it could be of.
    facts.write_new(made.path());
    for (const fs::path& path : {layer_file(made.path(), facts.top), index_file(made.path(), facts.top), made.path()})
      give_to_server(path);
    put_in_place(made.path(), disk);
  }

  void serve(const fs::path& disk, const Service& service) override {
    ResidentStart start;
    start.arguments = {fs::absolute(disk).native(), fs::absolute(service.socket).native(),
                       std::to_string(service.groups.size()), std::to_string(service.below.size())};
    start.descriptors = service.groups;
    start.descriptors.insert(start.descriptors.end(), service.below.begin(), service.below.end());
    start_resident(server_of(disk), start);
  }

  bool is_served(const fs::path& disk) override { return static_cast<bool>(connect_resident(server_of(disk))); }

  void end(const fs::path& disk) override {
    const Resident server = server_of(disk);
    if (const UniqueFd socket = connect_resident(server)) {
      send_message(socket.get(), canonical_json({{"op", "end"}}));
      // Its answer is that all is flushed; the holder goes when the server is gone.
      (void)receive_message(socket.get());
      const auto until = std::chrono::steady_clock::now() + kPatience;
      while (connect_resident(server)) {
        if (std::chrono::steady_clock::now() > until) throw failure("the server of the disk does not end");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    for (const std::string& name : {server.socket, server.log}) ::unlink((server.run / name).c_str());
  }

  void seal(const fs::path& disk, const fs::path& snapshot) override {
    // As long as it is open, the server removes no layer.
    const UniqueFd socket = connect_resident(server_of(disk));
    if (socket) {
      send_message(socket.get(), canonical_json({{"op", "seal"}}));
      (void)answer_of(socket.get());
    } else {
      DiskStack stack(disk, {});
      stack.seal();
      for (const fs::path& path : {layer_file(disk, stack.facts().top), index_file(disk, stack.facts().top)})
        give_to_server(path);
    }
    DiskFacts facts = DiskFacts::read(disk);
    facts.top = 0;
    TempDirectory made(snapshot.parent_path());
    for (const std::uint64_t number : facts.layers) {
      const fs::path layer = layer_file(made.path(), number);
      link_layer(layer_file(disk, number), layer);
      const UniqueFd file = open_file(layer, O_RDONLY | O_NOFOLLOW);
      make_immutable(file.get());
      if (::fsync(file.get()) != 0) throw system_error("flush " + quote(layer.native()));
    }
    facts.write(made.path());
    put_in_place(made.path(), snapshot);
    sync_directory(snapshot.parent_path());
  }

  std::vector<fs::path> layers(const fs::path& disk) override {
    std::vector<fs::path> files;
    for (const std::uint64_t number : DiskFacts::read(disk).layers) files.push_back(layer_file(disk, number));
    return files;
  }
};

}  // namespace

std::unique_ptr<engine::MachineDisks> make_machine_disks() { return std::make_unique<ServedDisks>(); }

}  // namespace dsec::layers
