// What clients and edges tell each other: paths, frames, and the JSON of calls and answers. The first byte chooses;
// only Error is forgiven.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/remote/address.h"
#include "core/remote/frame.h"
#include "core/remote/routes.h"
#include "core/remote/values.h"

namespace {

using namespace dsec;
using namespace dsec::remote;

void require(bool holds) {
  if (!holds) std::abort();
}

void read_frames(std::string_view text) {
  FrameReader whole(1 << 16), cut(1 << 16);
  std::string first, second;
  whole.add(text);
  while (const auto frame = whole.next()) first += frame->payload + static_cast<char>(frame->kind);
  for (const char byte : text) {
    cut.add({&byte, 1});
    while (const auto frame = cut.next()) second += frame->payload + static_cast<char>(frame->kind);
  }
  require(first == second);
}

void parse(unsigned char which, std::string_view text) {
  if (which % 20 == 0) return read_frames(text);
  if (which % 20 == 1) {
    const Found found = find_route("GET", text);
    if (found.route) target_of(found.route->call, found.parameters);
    return;
  }
  if (which % 20 == 2) {
    Address::parse(std::string(text));
    return;
  }
  if (which % 20 == 3) {
    error_from_document(text, "otherwise");
    return;
  }
  const Json json = parse_json(text, "fuzz");
  if (!json.is_object()) return;
  switch (which % 20) {
    case 4:
      sandbox_from_wire(json);
      break;
    case 5:
      exec_spec_from_wire(json);
      break;
    case 6:
      session_command_from_wire(json);
      break;
    case 7:
      session_spec_from_wire(json);
      break;
    case 8:
      update_from_wire(json);
      break;
    case 9:
      network_change_from_wire(json);
      break;
    case 10:
      http_request_from_wire(json);
      break;
    case 11:
      http_response_from_wire(json);
      break;
    case 12:
      layer_from_wire(json);
      break;
    case 13:
      operation_from_wire(json);
      break;
    case 14:
      trajectory_from_wire(json);
      break;
    case 15:
      network_report_from_wire(json);
      break;
    case 16:
      file_change_from_wire(json);
      break;
    case 17:
      stats_from_wire(json);
      break;
    case 18:
      snapshot_request_from_wire(json);
      break;
    default:
      fork_request_from_wire(json);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    parse(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const Error&) {
  }
  return 0;
}
