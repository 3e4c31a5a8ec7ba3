#include "core/base/received_descriptors.h"

#include <cstring>

namespace dsec {

std::vector<UniqueFd> take_descriptors(msghdr& message) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

}  // namespace dsec
