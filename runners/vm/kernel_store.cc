#include "runners/vm/kernel_store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "runners/container/program.h"
#include "runners/vm/boot_image.h"
#include "runners/vm/initramfs.h"
#include "runners/vm/kernel_source.h"

// vm/kernels/NAME holds vmlinuz, vmlinux, modules.cpio, initramfs and kernel.json, which is written last of a new one.
// The initramfs is modules.cpio and the programs of the dsec that made it: the kernel unpacks one archive after the
// other.

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kMostImage = 256ull << 20, kMostProgram = 64ull << 20;
constexpr char kDescription[] = "kernel.json";

fs::path kernels_of(const fs::path& home) { return home / "vm" / "kernels"; }

void check_name(const std::string& name) {
  const bool good = !name.empty() && name.size() <= 100 && name.front() != '.' &&
                    std::all_of(name.begin(), name.end(), [](unsigned char sign) {
                      return std::isalnum(sign) || sign == '.' || sign == '-' || sign == '_' || sign == '+';
                    });
  if (!good)
    throw usage_error(quote(name) + " cannot be the name of a kernel")
        .hint("use letters, digits and . - _ +, with no dot in front");
}

struct Programs {
  std::string init, helper;
  std::string digest;  ///< of both
};

Programs read_programs() {
  Programs programs{read_all(open_own_program("dsec-init").get(), kMostProgram),
                    read_all(open_own_program("dsec-guest").get(), kMostProgram), ""};
  programs.digest = Digest::of(programs.init).hex() + Digest::of(programs.helper).hex();
  return programs;
}

GuestKernel describe(const fs::path& place, const Json& json) {
  GuestKernel kernel;
  if (json_u64(json, "version") > kVersion)
    throw failure("the kernel " + quote(place.filename().native()) + " was imported by a newer dsec")
        .hint("use that dsec, or import the kernel again");
  kernel.name = place.filename().native();
  kernel.release = json_string(json, "release");
  kernel.source = json_string(json, "source");
  kernel.imported = json_u64(json, "imported");
  kernel.kernel = place / "vmlinuz";
  if (fs::exists(place / "vmlinux")) kernel.vmlinux = place / "vmlinux";
  kernel.initramfs = place / "initramfs";
  kernel.carries_egress = json.value("egress", Json()) == true;
  for (const Json& name : json.at("modules")) kernel.modules.push_back(name.get<std::string>());
  return kernel;
}

Json read_description(const fs::path& place) {
  const fs::path path = place / kDescription;
  Json json = parse_json(read_file(path), path.native());
  json_string(json, "release");
  if (!json.contains("modules") || !json["modules"].is_array()) throw failure(quote(path.native()) + " has no modules");
  return json;
}

void write_initramfs(const fs::path& place, Json& json, const Programs& programs) {
  write_file_atomic(place / "initramfs",
                    read_file(place / "modules.cpio", 1ull << 30) + pack_programs(programs.init, programs.helper));
  json["programs"] = programs.digest;
  write_file_atomic(place / kDescription, canonical_json(json) + "\n");
}

// vmlinux is for Firecracker alone: a kernel without it is of use, and `ls` shows that it has none.
void write_vmlinux(const fs::path& place, std::string_view image) {
  std::optional<std::string> kernel;
  try {
    kernel = extract_vmlinux(image);
  } catch (const Error&) {
    return;
  }
  if (kernel) write_file_atomic(place / "vmlinux", *kernel);
}

void fill(const fs::path& place, const KernelFiles& files, const std::string& source) {
  const std::string image = read_file(files.image, kMostImage);
  ModuleTable table(files.modules);
  const std::vector<ModuleGroup> groups = choose_modules(table);
  write_file_atomic(place / "vmlinuz", image);
  write_vmlinux(place, image);
  write_file_atomic(place / "modules.cpio", pack_modules(groups));
  Json names = Json::array();
  for (const fs::path& file : groups.front().files) names.push_back(module_name(file));
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  Json json = {{"version", kVersion},     {"release", files.release},    {"source", source},
               {"imported", now.count()}, {"modules", std::move(names)}, {"egress", can_carry_egress(table)}};
  write_initramfs(place, json, read_programs());
}

// The old one, if any, is put aside first: a directory cannot be renamed over one with content.
void publish(const fs::path& made, const fs::path& target) {
  if (fs::exists(target)) {
    const TempDirectory aside(target.parent_path());
    fs::rename(target, aside.path() / "old");
    fs::rename(made, target);
  } else {
    fs::rename(made, target);
  }
  sync_directory(target.parent_path());
}

}  // namespace

GuestKernel import_kernel(const fs::path& home, const fs::path& source, std::string name) {
  if (!name.empty()) check_name(name);
  return attempt("cannot import the kernel", [&] {
    const fs::path kernels = kernels_of(home);
    make_directories(kernels, 0700);
    const FileLock lock(kernels / ".lock", FileLock::Mode::Exclusive);
    const KernelFiles files = find_kernel_files(source, kernels);
    if (name.empty()) name = files.release;
    check_name(name);
    const TempDirectory temporary(kernels);
    const fs::path made = temporary.path() / "kernel";
    make_directories(made, 0700);
    fill(made, files, fs::absolute(source).filename().native());
    publish(made, kernels / name);
    return describe(kernels / name, read_description(kernels / name));
  });
}

std::vector<GuestKernel> list_kernels(const fs::path& home) {
  std::vector<GuestKernel> found;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(kernels_of(home), none))
    if (entry.path().filename().native().front() != '.' && entry.is_directory())
      found.push_back(describe(entry.path(), read_description(entry.path())));
  std::sort(found.begin(), found.end(), [](const auto& left, const auto& right) { return left.name < right.name; });
  return found;
}

std::optional<GuestKernel> find_guest_kernel(const fs::path& home, const std::string& name) {
  const std::vector<GuestKernel> all = list_kernels(home);
  const GuestKernel* chosen = nullptr;
  for (const GuestKernel& kernel : all) {
    if (!name.empty() && kernel.name != name) continue;
    if (chosen == nullptr || kernel.imported >= chosen->imported) chosen = &kernel;
  }
  if (chosen == nullptr) return std::nullopt;
  const fs::path place = kernels_of(home) / chosen->name;
  const Programs programs = read_programs();
  Json json = read_description(place);
  if (json_string_or(json, "programs", "") == programs.digest) return *chosen;
  const FileLock lock(kernels_of(home) / ".lock", FileLock::Mode::Exclusive);
  attempt("cannot make the initramfs of the kernel " + quote(chosen->name),
          [&] { write_initramfs(place, json, programs); });
  return *chosen;
}

bool remove_kernel(const fs::path& home, const std::string& name) {
  check_name(name);
  const fs::path kernels = kernels_of(home), place = kernels / name;
  if (!fs::exists(place / kDescription)) return false;
  const FileLock lock(kernels / ".lock", FileLock::Mode::Exclusive);
  const TempDirectory aside(kernels);
  fs::rename(place, aside.path() / "old");
  sync_directory(kernels);
  return true;
}

}  // namespace dsec::runners
