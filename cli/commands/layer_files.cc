#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/units.h"
#include "layers/compose/listing.h"

namespace dsec::cli {
namespace {
using layers::Entry, layers::EntryType;

struct Options {
  std::vector<std::string> refs;
  bool names = false;
};

bool is_deletion(const Entry& entry) {
  return entry.type == EntryType::CharDevice && entry.major == 0 && entry.minor == 0;
}

// The first column of ls -l; 'd' of a deletion would be a directory's, so it is '!'.
std::string mode_text(const Entry& entry) {
  static constexpr char kTypes[] = "-dlhcbp";
  std::string text(1, is_deletion(entry) ? '!' : kTypes[static_cast<int>(entry.type)]);
  for (int bit = 8; bit >= 0; --bit) text += (entry.mode >> bit) & 1 ? "rwx"[(8 - bit) % 3] : '-';
  const auto special = [&](std::size_t at, unsigned bit, char with_x, char without) {
    if (entry.mode & bit) text[at] = text[at] == 'x' ? with_x : without;
  };
  special(3, 04000, 's', 'S');
  special(6, 02000, 's', 'S');
  special(9, 01000, 't', 'T');
  return text;
}

const char* type_word(const Entry& entry) {
  if (is_deletion(entry)) return "deletion";
  static constexpr const char* kWords[] = {"file",        "directory",    "symlink", "hardlink",
                                           "char-device", "block-device", "fifo"};
  return kWords[static_cast<int>(entry.type)];
}

Json to_json(const layers::ListedFile& file) {
  const Entry& entry = file.entry;
  Json json = bytes_to_json("/" + entry.path);
  if (json.contains("data")) json = {{"path", json["data"]}};
  json.update({{"type", type_word(entry)},
               {"mode", entry.mode},
               {"uid", entry.uid},
               {"gid", entry.gid},
               {"size", entry.size},
               {"mtime", {entry.mtime.seconds, entry.mtime.nanoseconds}},
               {"layer", file.uses}});
  if (!entry.target.empty()) json["target"] = bytes_to_json(entry.target);
  return json;
}

std::string line_of(const layers::ListedFile& file, bool with_layer) {
  const Entry& entry = file.entry;
  std::string text = mode_text(entry) + " " + std::to_string(entry.uid) + ":" + std::to_string(entry.gid);
  text.resize(std::max<std::size_t>(text.size() + 1, 22), ' ');
  const std::string size = format_size(entry.size);
  text += std::string(size.size() < 10 ? 10 - size.size() : 0, ' ') + size + " /" + printable(entry.path);
  if (entry.type == EntryType::Symlink) text += " -> " + printable(entry.target);
  return with_layer ? text + "  [" + file.uses + "]" : text;
}

void run(const Options& options, Invocation& call) {
  std::vector<engine::StoredLayer> stack;
  for (const auto& ref : options.refs) stack.push_back(call.wiring().layer_store().get(LayerRef::parse(ref)));
  layers::list_files(call.wiring().layer_store(), stack, [&](const layers::ListedFile& file) {
    if (call.out().json())
      call.out().json_line(to_json(file));
    else if (options.names)
      call.out().line("/" + printable(file.entry.path));
    else
      call.out().line(line_of(file, stack.size() > 1));
  });
}

}  // namespace

void add_layer_files(Command& layer) {
  auto options = std::make_shared<Options>();
  Command& verb = layer.verb("files", "List the files of layers, without mounting them");
  verb.positionals("REF", options->refs, "Layers, bottom to top; of several, what they show together");
  verb.flag("-1,--names", options->names, "Paths only");
  verb.note("With -o json, one object a line. A deletion of something below has type '!'.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
