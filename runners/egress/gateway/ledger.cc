#include "runners/egress/gateway/ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::egress {
namespace {

// The counters have the first page, names follow, each with a newline.
constexpr std::size_t kPage = 4096;

}  // namespace

Ledger::Ledger(UniqueFd file) : file_(std::move(file)) {
  const bool fresh = !file_;
  if (fresh) file_.reset(::memfd_create("sandbox", MFD_CLOEXEC));
  if (!file_ || (fresh && ::ftruncate(file_.get(), kPage) != 0)) throw system_error("make a file in memory");
  if (::lseek(file_.get(), kPage, SEEK_SET) < 0) throw system_error("read a file in memory");
  const std::string text = read_all(file_.get());
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    names_.push_back(text.substr(begin, end - begin));
  void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (page == MAP_FAILED) throw system_error("map a file in memory");
  counters_ = static_cast<Counters*>(page);
}

Ledger::~Ledger() {
  if (counters_) ::munmap(counters_, kPage);
}

bool Ledger::add(const std::string& name) {
  const std::string line = name + "\n";
  const off_t end = ::lseek(file_.get(), 0, SEEK_CUR);
  if (::write(file_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    // Half a line would be a name.
    if (::ftruncate(file_.get(), end) == 0) ::lseek(file_.get(), end, SEEK_SET);
    return false;
  }
  names_.push_back(name);
  return true;
}

}  // namespace dsec::egress
