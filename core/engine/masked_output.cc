#include "core/engine/masked_output.h"

namespace dsec::engine {

std::vector<OutputPiece> masked_output(const Trajectory& trajectory, const Operation& operation, const SecretMask& mask,
                                       std::size_t most) {
  std::vector<OutputPiece> pieces;
  std::size_t kept[2] = {}, left_out[2] = {};
  trajectory.output(operation, Trajectory::Marks::With, [&](unsigned stream, auto, std::string_view data) {
    const std::size_t room = most - std::min(most, kept[stream]);
    left_out[stream] += data.size() - std::min(room, data.size());
    if (room == 0) return;
    OutputPiece piece{stream, std::string(data.substr(0, room)), false};
    // One that a command wrote itself does no harm: what is masked beside it is no more than the edge of a secret.
    piece.mark = data.starts_with("\n[dsec: ") && data.ends_with(" bytes dropped here]\n");
    kept[stream] += piece.data.size();
    pieces.push_back(std::move(piece));
  });
  for (unsigned stream = 0; stream < 2; ++stream) {
    SecretScan scan(mask);
    for (const OutputPiece& piece : pieces) {
      if (piece.stream != stream) continue;
      if (piece.mark)
        scan.gap();
      else
        scan.push(piece.data);
    }
    if (left_out[stream]) scan.gap();
    const std::vector<SecretScan::Place> places = scan.finish();
    std::uint64_t at = 0;
    for (OutputPiece& piece : pieces) {
      if (piece.stream != stream || piece.mark) continue;
      blank(piece.data, at, places);
      at += piece.data.size();
    }
    if (left_out[stream])
      pieces.push_back({stream, "\n[dsec: " + std::to_string(left_out[stream]) + " bytes more]\n", true});
  }
  return pieces;
}

}  // namespace dsec::engine
