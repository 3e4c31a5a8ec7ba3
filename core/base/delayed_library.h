#pragma once

#include <atomic>

namespace dsec {

/// A function of a library that is not linked: delayed_library.inc has one for each, and calls through it. cmake/
/// libraries.cmake says why, and which libraries these are.
struct DelayedFunction {
  std::atomic<void*> target;
  const char* name;
  const char* library;  ///< as dlopen(3) wants it
};

/// Loads the library, which stays for as long as the process does, and returns the function, which from now on is
/// called directly. Throws Error when there is no such library or it has no such function; its caller is unwound like
/// any other.
extern "C" void* dsec_bind_delayed(DelayedFunction* function);

}  // namespace dsec
