#include "registry/collect/condemned.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/base/json.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace {

constexpr int kSchema = 1;
constexpr const char *kType = "dsec-condemned", *kLayer = "layer", *kBlob = "blob";

std::string note_name(const Digest& digest) { return std::string(kCondemned) + "/" + digest.hex() + ".json"; }

std::optional<CondemnedNote> read_note(const Notes& notes, const Digest& digest) {
  const auto text = notes.read(note_name(digest));
  if (!text) return std::nullopt;
  try {
    const CondemnedNote note = CondemnedNote::parse(*text);
    return note.digest == digest ? std::optional(note) : std::nullopt;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Usage) throw;
    return std::nullopt;
  }
}

std::set<Digest> noted(const Notes& notes) {
  std::set<Digest> found;
  for (const std::string& name : notes.names(kCondemned))
    if (const auto digest = digest_of_manifest_file(last_part(name))) found.insert(*digest);
  return found;
}

}  // namespace

CondemnedNote CondemnedNote::parse(std::string_view text) {
  const Json json = parse_json(text, "a note about what is condemned");
  if (json_string(json, "type") != kType) throw usage_error("a note about what is condemned is of another type");
  if (json_u64(json, "schema") != kSchema)
    throw failure("a note about what is condemned has a newer format").hint("use a newer dsec");
  const std::string kind = json_string(json, "kind");
  if (kind != kLayer && kind != kBlob) throw usage_error("a note condemns something else than layers and blobs");
  return {Digest::parse(json_string(json, "digest")), kind == kLayer, json_u64(json, "since")};
}

std::string CondemnedNote::text() const {
  return canonical_json({{"type", kType},
                         {"schema", kSchema},
                         {"kind", is_layer ? kLayer : kBlob},
                         {"digest", digest.str()},
                         {"since", since}}) +
         "\n";
}

Condemned Condemned::read(const Notes& notes) {
  Condemned all;
  for (const Digest& digest : noted(notes))
    if (const auto note = read_note(notes, digest)) (note->is_layer ? all.layers : all.blobs)[digest] = note->since;
  return all;
}

void Condemned::write(const Condemned& before, const Notes& notes, const std::string& author) const {
  const auto bring = [&](const std::map<Digest, std::uint64_t>& now, const std::map<Digest, std::uint64_t>& then,
                         bool is_layer) {
    for (const auto& [digest, since] : now)
      if (const auto known = then.find(digest); known == then.end() || known->second != since)
        notes.write(note_name(digest), CondemnedNote{digest, is_layer, since}.text(), author);
    for (const auto& [digest, since] : then)
      if (!layers.contains(digest) && !blobs.contains(digest)) notes.remove(note_name(digest));
  };
  bring(layers, before.layers, true);
  bring(blobs, before.blobs, false);
}

void pardon(const Notes& notes, const std::set<Digest>& announced) {
  for (const Digest& digest : noted(notes))
    if (announced.contains(digest)) notes.remove(note_name(digest));
}

}  // namespace dsec::registry
