#include "registry/list_budget.h"

#include "core/base/error.h"

namespace dsec::registry {

void ListBudget::take(const std::string& name) {
  ++names_;
  bytes_ += name.size();
  if (names_ > kMostNames || bytes_ > kMostBytes)
    throw failure("the list of " + who_ + " is larger than any that dsec reads: more than " +
                  std::to_string(names_ - 1) + " names of " + std::to_string(bytes_ - name.size()) + " bytes");
}

}  // namespace dsec::registry
