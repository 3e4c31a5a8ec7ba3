#pragma once

#include <functional>
#include <string>

#include "core/base/error.h"

namespace dsec {

/// Of what `call` throws; empty when it throws nothing.
inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace dsec
