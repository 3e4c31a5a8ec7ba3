#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/model/layer_ref.h"
#include "core/model/operation_context.h"

namespace dsec::engine {

/// One difference between a sandbox's writable layer and its layers, as `docker diff` prints it.
struct Change {
  enum class Kind { Added, Modified, Deleted };
  Kind kind;
  std::string path;  ///< absolute, bytes
};

/// How much of a file changed.
struct FileChange {
  Change change;
  bool binary = false;  ///< or too large to be compared by lines: then only its sizes are known
  std::uint64_t added_lines = 0, deleted_lines = 0;
  std::uint64_t bytes_before = 0, bytes_after = 0;
};

enum class DiffForm {
  Patch,  ///< unified, for git apply and patch(1); what no patch can say stands in lines between that both pass over
  Tar,    ///< of what was changed, in the form of an OCI layer: deletions as ".wh.NAME"
};

/// What the layer of a sandbox's changes is to be called.
struct SnapshotRequest {
  LayerName name;      ///< snapshot/… or workspace/…
  std::string tag;     ///< empty: none
  bool scrub = false;  ///< leave out caches, histories, keys and the like (dsec-sources(7))
  std::map<std::string, std::string> labels;
  OperationContext operation;  ///< an op_id that is recorded already gives the layer of then
};

struct Snapshot {
  Digest layer;                ///< of its manifest
  std::vector<Digest> layers;  ///< what shows the sandbox's files, bottom to top; the last is `layer`
  std::uint64_t bytes = 0;     ///< of its blobs
  std::size_t collapsed = 0;   ///< snapshots below that became part of it, since the chain was at its longest
  std::vector<std::string> warnings;
};

struct ForkRequest {
  std::size_t count = 1;
  std::string name;  ///< of the forks, which get "-1", "-2"…; empty: that of the sandbox, if it has one
  std::map<std::string, std::string> labels;  ///< over those of the sandbox
  OperationContext operation;                 ///< an op_id that is recorded already gives the forks of then
};

/// The label of a fork that names the sandbox it was made from.
inline constexpr const char* kForkedFromLabel = "dsec.forked-from";

}  // namespace dsec::engine
