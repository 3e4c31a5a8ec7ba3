#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "layers/overlaybd/commit.h"

namespace dsec::cli {

class Command;
class Invocation;

/// What makes a layer of `dsec obd` what it is; create and commit share it.
struct NewLayerFlags {
  std::optional<std::string> uuid;
  std::string message, compression = "none";
  std::optional<std::uint64_t> block_size;
  bool tar = false;
};

void declare(Command& verb, NewLayerFlags& flags);
layers::overlaybd::NewLayer new_layer(const NewLayerFlags& flags);

std::vector<std::filesystem::path> to_paths(const std::vector<std::string>& names);

/// Lets `write` fill a file that gets the name `out` when it is complete, and tells what became of it.
void write_layer(const std::string& out, Invocation& call,
                 const std::function<layers::overlaybd::Written(int fd)>& write);
void tell_layer(const std::string& out, const layers::overlaybd::Written& written, Invocation& call);
/// A UUID, or null for none.
Json uuid_json(const std::string& uuid);

}  // namespace dsec::cli
