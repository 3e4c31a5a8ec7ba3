#pragma once

#include <string>

#include "core/engine/engine.h"
#include "core/engine/home.h"
#include "core/engine/normalise.h"
#include "core/engine/trajectory.h"

namespace dsec::cli {

struct ReplaySandboxOptions {
  std::string what;    ///< as the trajectory was named, for errors
  bool trust = false;  ///< its sandbox gets the parts of this host that it had, wherever the trajectory comes from
  bool keep = false;   ///< it stays
};

/// The fresh sandbox that a trajectory is replayed in, which is removed again.
class ReplaySandbox {
 public:
  /// `engine` must outlive it. Throws Error (Usage) when the trajectory comes from elsewhere and its sandbox would get
  /// parts of this host, and Error when it does not tell what its sandbox was made of.
  ReplaySandbox(engine::Engine& engine, const engine::Home& home, const engine::Trajectory& trajectory,
                ReplaySandboxOptions options);
  ~ReplaySandbox();
  ReplaySandbox(const ReplaySandbox&) = delete;
  ReplaySandbox& operator=(const ReplaySandbox&) = delete;

  const std::string& id() const noexcept { return id_; }
  /// Makes the names of both sandboxes one.
  void add_names(engine::Normaliser& normaliser) const;

 private:
  engine::Engine& engine_;
  const std::string recorded_id_;
  const bool keep_;
  std::string id_;
};

}  // namespace dsec::cli
