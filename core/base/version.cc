#include "core/base/version.h"

namespace dsec {

const char* const kVersion = DSEC_VERSION;

}  // namespace dsec
