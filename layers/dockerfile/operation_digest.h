#pragma once

#include "core/base/digest.h"
#include "layers/dockerfile/plan.h"

namespace dsec::layers::dockerfile {

/// Of all texts of an operation as they are, byte for byte: JSON, which the rest of a step's key is made of, cannot
/// tell bytes apart that are no UTF-8. Stages, images and files of a context count only with their names.
Digest digest_of_texts(const Operation& operation);

}  // namespace dsec::layers::dockerfile
