#include "cli/vm_kernel_json.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/output.h"

namespace dsec::cli {

Json kernel_json(const runners::GuestKernel& kernel) {
  return {{"name", kernel.name},
          {"release", kernel.release},
          {"source", printable(kernel.source)},
          {"imported", iso_time(std::chrono::system_clock::time_point(std::chrono::seconds(kernel.imported)))},
          {"kernel", kernel.kernel.native()},
          {"vmlinux", kernel.vmlinux.empty() ? Json(nullptr) : Json(kernel.vmlinux.native())},
          {"initramfs", kernel.initramfs.native()},
          {"modules", kernel.modules}};
}

}  // namespace dsec::cli
