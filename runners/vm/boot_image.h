#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsec::runners {

/// The uncompressed kernel (an ELF file, as Firecracker wants it) that a bzImage of x86 carries. Empty when `image` is
/// none, or packed in a way that is not known; throws Error when it is damaged.
std::optional<std::string> extract_vmlinux(std::string_view image);

/// What the kernel calls itself, "6.1.0-50-cloud-amd64"; empty when `image` is no bzImage.
std::string boot_image_release(std::string_view image);

}  // namespace dsec::runners
