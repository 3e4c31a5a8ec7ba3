#include "cli/root.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {
namespace fs = std::filesystem;

constexpr const char* kRootStore = "/var/lib/dsec";

std::string user_store(const char* home) { return std::string(home) + "/.local/share/dsec"; }

}  // namespace

void require_root(const std::string& command) {
  if (::geteuid() == 0) return;
  Error error = failure("'dsec " + command + "' needs root").hint("sudo dsec " + command + " …");
  const char* home = std::getenv("HOME");
  if (home && !std::getenv("DSEC_HOME"))
    error.hint("sudo uses the store " + std::string(kRootStore) + ", yours is " + user_store(home) +
               ": with sudo DSEC_HOME=" + user_store(home) + " dsec it uses yours");
  throw error;
}

void require_root(const Wiring& wiring, const std::string& command) {
  if (wiring.context().empty()) require_root(command);
}

std::string sudo_store_note() {
  const char* user = std::getenv("SUDO_USER");
  if (::geteuid() != 0 || !user || std::getenv("DSEC_HOME")) return "";
  const passwd* entry = ::getpwnam(user);
  if (!entry || entry->pw_uid == 0) return "";
  const std::string theirs = user_store(entry->pw_dir);
  std::error_code ignored;
  if (!fs::exists(theirs, ignored)) return "";
  return "sudo uses the store " + std::string(kRootStore) + "; without sudo it is " + theirs +
         " (DSEC_HOME chooses one)";
}

}  // namespace dsec::cli
