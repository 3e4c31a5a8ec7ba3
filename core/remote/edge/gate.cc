#include "core/remote/edge/gate.h"

#include <fcntl.h>
#include <poll.h>

#include "core/base/error.h"

namespace dsec::remote {
namespace {

// For a client to end its side when it was told the end.
constexpr std::chrono::milliseconds kFarewell{5'000};

}  // namespace

Gate::Gate(Readiness& readiness, int descriptor, Ready what) : readiness_(readiness), what_(what) {
  if (descriptor < 0) return;
  copy_.reset(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!copy_) throw system_error("copy a descriptor");
}

Gate::~Gate() {
  if (copy_) readiness_.forget(copy_.get());
}

bool Gate::open() const {
  if (!copy_) return true;
  pollfd waiting{copy_.get(), static_cast<short>(what_ == Ready::ToRead ? POLLIN : POLLOUT), 0};
  return ::poll(&waiting, 1, 0) > 0;
}

void Gate::when_open(std::function<void()> work) { readiness_.when(copy_.get(), what_, std::move(work)); }

void say_farewell(const std::shared_ptr<Exchange>& exchange) {
  exchange->end_stream();
  if (exchange->upgraded()) exchange->after(kFarewell, [exchange] { exchange->forsake(); });
}

}  // namespace dsec::remote
