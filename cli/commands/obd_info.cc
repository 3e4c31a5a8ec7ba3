#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/obd_flags.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "layers/overlaybd/stack.h"

namespace dsec::cli {
namespace {

namespace obd = layers::overlaybd;

/// What is told of one layer.
struct Info {
  std::string file, index;
  const char* kind;
  obd::LayerHeader facts;
  std::uint64_t stored = 0;  ///< bytes of its files
  std::uint64_t data = 0, zeros = 0;
  std::size_t mappings = 0;
  std::uint64_t passed_over = 0;
  bool in_tar = false;
  std::optional<obd::ZfileFacts> zfile;
};

void count(Info& info, const std::vector<obd::Mapping>& mappings) {
  for (const obd::Mapping& mapping : mappings)
    (mapping.zero() ? info.zeros : info.data) += mapping.length() * obd::kSector;
  info.mappings = mappings.size();
}

Info examine(const obd::LayerFiles& files) {
  Info info{.file = files.data.native(), .index = files.index.native(), .kind = "sealed"};
  if (files.writable) {
    const obd::WritableLayer layer(files.data, files.index, obd::WritableLayer::Access::Read);
    info.kind = layer.is_sparse() ? "sparse" : "writable";
    info.facts = layer.facts();
    info.stored = layer.stored();
    info.passed_over = layer.passed_over();
    count(info, layer.extents().mappings());
  } else {
    const obd::SealedLayer layer(obd::open_layer_file(files.data));
    info.facts = layer.facts();
    info.stored = layer.file().stored;
    info.in_tar = layer.file().in_tar;
    info.zfile = layer.file().zfile;
    count(info, layer.mappings());
  }
  return info;
}

Json to_json(const Info& info) {
  Json compression = nullptr;
  if (info.zfile)
    compression = {{"format", "zfile:" + std::string(to_string(info.zfile->compression))},
                   {"block_size", info.zfile->block_size},
                   {"checksums", info.zfile->has_checksums}};
  return {{"file", printable(info.file)},
          {"index", info.index.empty() ? Json(nullptr) : Json(printable(info.index))},
          {"kind", info.kind},
          {"size", info.facts.size},
          {"uuid", uuid_json(info.facts.uuid)},
          {"parent", uuid_json(info.facts.parent)},
          {"message", printable(info.facts.message)},
          {"bytes", info.stored},
          {"mappings", info.mappings},
          {"data", info.data},
          {"zeros", info.zeros},
          {"passed_over", info.passed_over},
          {"tar", info.in_tar},
          {"compression", compression}};
}

void tell(const Info& info, Output& out) {
  const auto line = [&](const char* what, const std::string& text) {
    out.line("  " + (what + std::string(":") + std::string(10, ' ')).substr(0, 10) + text);
  };
  out.line(printable(info.file) + (info.index.empty() ? "" : " " + printable(info.index)));
  std::string kind = info.kind;
  if (info.zfile)
    kind += ", zfile:" + std::string(to_string(info.zfile->compression)) + " in blocks of " +
            format_size(info.zfile->block_size) + (info.zfile->has_checksums ? "" : " without checksums");
  if (info.in_tar) kind += ", in a tar archive";
  line("kind", kind);
  line("device", info.facts.size == 0 ? "as the layer below" : format_size(info.facts.size));
  line("data", format_size(info.data) + " and " + format_size(info.zeros) + " of zeros in " +
                   std::to_string(info.mappings) + (info.mappings == 1 ? " mapping" : " mappings"));
  line("stored", format_size(info.stored));
  if (!info.facts.uuid.empty()) line("uuid", info.facts.uuid);
  if (!info.facts.parent.empty()) line("parent", info.facts.parent);
  if (!info.facts.message.empty()) line("message", printable(info.facts.message));
  if (info.passed_over > 0)
    line("note", std::to_string(info.passed_over) + " bytes at the end of the index that a crash left are passed over");
}

void run(const std::vector<std::string>& files, Invocation& call) {
  Json all = Json::array();
  for (const obd::LayerFiles& layer : obd::group_layer_files(to_paths(files))) {
    const Info info = examine(layer);
    if (call.out().json())
      all.push_back(to_json(info));
    else
      tell(info, call.out());
  }
  if (call.out().json()) call.out().json(all);
}

}  // namespace

void add_obd_info(Command& group) {
  auto files = std::make_shared<std::vector<std::string>>();
  Command& verb = group.verb("info", "Show what layers tell of themselves");
  verb.positionals("FILE", *files, "Layers, the lowest first; of a writable one its data and its index file");
  verb.note("With -o json, an array with an object for each layer.");
  verb.runs([files](Invocation& call) { run(*files, call); });
}

}  // namespace dsec::cli
