#include "cli/obd_flags.h"

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/invocation.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "layers/overlaybd/new_file.h"
#include "layers/overlaybd/uuid.h"

namespace dsec::cli {

namespace obd = layers::overlaybd;

void declare(Command& verb, NewLayerFlags& flags) {
  verb.choice("--compress", flags.compression, {"none", "zfile:lz4", "zfile:zstd"}, "Compress the layer");
  verb.size("--block-size", flags.block_size, "What is compressed at a time: 4KiB (default) to 32KiB");
  verb.flag("--tar", flags.tar, "Put the layer into a tar archive, as image registries have it");
  verb.option("--uuid", "UUID", flags.uuid, "Name of the layer, for those on top of it");
  verb.option("-m,--message", "TEXT", flags.message, "A message in the layer, 256 bytes at most");
}

obd::NewLayer new_layer(const NewLayerFlags& flags) {
  obd::NewLayer layer;
  if (flags.uuid) layer.uuid = obd::parse_uuid(*flags.uuid);
  layer.message = flags.message;
  layer.packing.compression = obd::Packing::parse_compression(flags.compression);
  if (flags.block_size && !layer.packing.compression) throw usage_error("--block-size goes with --compress");
  if (flags.block_size.value_or(0) > obd::ZfileHeader::kMostWritten)
    throw usage_error("blocks are of 32KiB at most").hint("one of 4KiB, 8KiB, 16KiB, 32KiB");
  if (flags.block_size) layer.packing.block_size = static_cast<std::uint32_t>(*flags.block_size);
  layer.packing.tar = flags.tar;
  return layer;
}

std::vector<std::filesystem::path> to_paths(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

Json uuid_json(const std::string& uuid) { return uuid.empty() ? Json(nullptr) : Json(uuid); }

void write_layer(const std::string& out, Invocation& call, const std::function<obd::Written(int fd)>& write) {
  const std::filesystem::path target = std::filesystem::absolute(out);
  const obd::Written written = attempt("cannot write layer " + quote(out), [&] {
    obd::refuse_existing(out);
    // Under its name it is complete or not there at all.
    TempFile file(target.parent_path(), 0644);
    const obd::Written done = write(file.fd());
    obd::publish_new(file, target);
    return done;
  });
  tell_layer(out, written, call);
}

void tell_layer(const std::string& out, const obd::Written& written, Invocation& call) {
  call.end_progress();
  if (call.out().json())
    return call.out().json({{"file", std::filesystem::absolute(out).native()},
                            {"bytes", written.bytes},
                            {"size", written.size},
                            {"mappings", written.mappings},
                            {"uuid", uuid_json(written.uuid)},
                            {"parent", uuid_json(written.parent)}});
  call.out().line(printable(out) + ": " + format_size(written.bytes) + " for a device of " + format_size(written.size) +
                  ", " + std::to_string(written.mappings) + (written.mappings == 1 ? " mapping" : " mappings"));
}

}  // namespace dsec::cli
