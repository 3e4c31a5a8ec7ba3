#pragma once

#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec::registry {

/// What the holder keeps, and each server is given.
struct LoaderDescriptors {
  UniqueFd listener, device, root, memory;
};

/// The arguments of the program by which its processes know what they are.
inline constexpr char kHold[] = "hold", kServe[] = "serve";

/// Keeps the descriptors and starts a server whenever there is none; returns when a server has ended for lack of work,
/// and throws Error when none lives. `link`: of a server that runs, else invalid. `ready`: given to the first server
/// alone. `program`: what is started.
void hold(const LoaderDescriptors& descriptors, UniqueFd link, UniqueFd ready, const std::string& program,
          const std::string& home);

/// The server's side: a new holder for one that died; returns the server's end of the link to it.
UniqueFd start_holder(const LoaderDescriptors& descriptors, const std::string& program, const std::string& home);

/// Tells the holder that the server serves.
void tell_holder(int link);

/// Tells the holder that the server ends because nobody needs it, and waits until it has heard.
void end_holder(int link);

}  // namespace dsec::registry
