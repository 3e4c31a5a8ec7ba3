#pragma once

#include <string>

namespace dsec::registry::test {

/// While it lives, listing a directory whose path ends so breaks off with EIO after `entries`, as a bad disk or a file
/// server has it. One at a time.
class FailingReaddir {
 public:
  FailingReaddir(std::string path_end, int entries);
  FailingReaddir(const FailingReaddir&) = delete;
  ~FailingReaddir();
};

}  // namespace dsec::registry::test
