#pragma once

#include <string>
#include <string_view>

namespace dsec::engine {

/// `length` random characters of [a-z2-7], from the kernel's generator.
std::string random_id(std::size_t length);
/// Whether `text` consists of [a-z2-7] only.
bool is_id_text(std::string_view text);
inline constexpr std::size_t kSandboxIdSize = 22;
/// A whole sandbox id: so many characters of [a-z2-7].
bool is_sandbox_id(std::string_view text);

}  // namespace dsec::engine
