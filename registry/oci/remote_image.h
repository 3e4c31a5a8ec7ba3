#pragma once

#include "core/engine/remote_image.h"

namespace dsec::registry {

/// Images through the distribution API; what config.yaml says of hosts is read when one is opened, and mirrors are
/// asked first.
engine::OpenRemoteImage remote_images();

}  // namespace dsec::registry
