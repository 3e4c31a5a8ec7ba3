#include "core/base/delayed_library.h"

#include <dlfcn.h>

#include "core/base/error.h"

namespace dsec {

void* dsec_bind_delayed(DelayedFunction* function) {
  // Counted by the dynamic linker: the second time it only finds what is there.
  void* library = ::dlopen(function->library, RTLD_NOW | RTLD_LOCAL);
  void* found = library ? ::dlsym(library, function->name) : nullptr;
  if (!found) {
    const char* why = ::dlerror();
    throw failure("load " + std::string(function->library) + ": " + (why ? why : "it has no " + quote(function->name)))
        .hint("install the library: dsec was built with it");
  }
  function->target.store(found, std::memory_order_release);
  return found;
}

}  // namespace dsec
