#pragma once

namespace dsec {

/// Where the guest of a machine reads its layers: from the memory in which its host has them cached, or from drives,
/// into a cache of its own. Auto: what costs less.
enum class PmemUse { Auto, On, Off };

}  // namespace dsec
