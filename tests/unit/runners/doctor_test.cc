#include "runners/doctor.h"

#include <linux/capability.h>

#include <catch2/catch.hpp>

#include "core/base/files.h"

using namespace dsec::runners;

namespace {

HostFacts good_host() {
  HostFacts facts;
  facts.kernel_major = 6, facts.kernel_minor = 12, facts.kernel_release = "6.12.1";
  facts.root = true, facts.capabilities = ~0ull;
  facts.cgroup_layout = "v2";
  facts.cgroup_limits = {{"cpu", ""}, {"memory", ""}, {"pids", ""}};
  facts.home = "/var/lib", facts.home_filesystem = "ext4";
  facts.home_free_bytes = 100ull << 30, facts.home_free_files = 1'000'000;
  facts.mkfs_erofs = "1.9.4, /usr/bin/mkfs.erofs";
  facts.init_program = "/usr/libexec/dsec/dsec-init";
  facts.tools = {{"mkfs.ext4", "/sbin/mkfs.ext4"}, {"mmdebstrap", "/usr/bin/mmdebstrap"}};
  facts.sysctl = {{"kernel.pid_max", 4194304}, {"user.max_user_namespaces", 100000}};
  facts.open_files_limit = 1048576;
  return facts;
}

const HostCheck& check_of(const HostReport& report, const std::string& name) {
  for (const HostCheck& each : report.checks)
    if (each.name == name) return each;
  FAIL("no check " << name);
  throw 0;
}

bool works(const HostReport& report, const std::string& start) {
  for (const HostAbility& each : report.abilities)
    if (each.what.rfind(start, 0) == 0) return each.works;
  FAIL("no ability " << start);
  return false;
}

}  // namespace

TEST_CASE("a good host has nothing to mend", "[runners][doctor]") {
  const HostReport report = judge_host(good_host());
  for (const HostCheck& each : report.checks) {
    INFO(each.name << ": " << each.found);
    CHECK(each.status == CheckStatus::Ok);
    CHECK(each.mend.empty());
  }
  for (const HostAbility& each : report.abilities) CHECK(each.works);
  CHECK(report.place == "this host, as root");
}

TEST_CASE("in an unprivileged container layers can be made but not run, and it says why", "[runners][doctor]") {
  HostFacts facts = good_host();
  facts.container = "docker";
  facts.capabilities = 0xa80425fb;
  facts.erofs = facts.overlay = facts.overlay_on_home = facts.id_mapped_mounts = facts.user_namespaces =
      "Operation not permitted (EPERM)";
  facts.cgroup_lifecycle = "/sys/fs/cgroup is mounted read-only";
  const HostReport report = judge_host(facts);
  CHECK(report.place == "an unprivileged container (docker)");
  CHECK(works(report, "import"));
  CHECK(works(report, "inspect"));
  CHECK_FALSE(works(report, "mount"));
  CHECK_FALSE(works(report, "run"));
  const HostCheck& root = check_of(report, "root");
  CHECK(root.status == CheckStatus::Fail);
  CHECK(root.found.find("CAP_SYS_ADMIN") != std::string::npos);
  CHECK(root.mend.find("--privileged") != std::string::npos);
  CHECK(check_of(report, "EROFS").mend == "see permissions: root");
}

TEST_CASE("each fault is named with its remedy", "[runners][doctor]") {
  const auto fault = [](auto change, const std::string& name, CheckStatus status) {
    HostFacts facts = good_host();
    change(facts);
    const HostReport report = judge_host(facts);
    const HostCheck check = check_of(report, name);
    CHECK(check.status == status);
    CHECK_FALSE(check.mend.empty());
    if (status == CheckStatus::Fail) CHECK_FALSE((works(report, "run") && works(report, "import")));
  };
  fault([](HostFacts& f) { f.kernel_major = 5, f.kernel_minor = 10; }, "version", CheckStatus::Fail);
  fault([](HostFacts& f) { f.root = false; }, "root", CheckStatus::Fail);
  fault([](HostFacts& f) { f.initial_user_namespace = false; }, "root", CheckStatus::Fail);
  fault([](HostFacts& f) { f.erofs_from_file = "ENOTBLK"; }, "EROFS from files", CheckStatus::Warn);
  fault([](HostFacts& f) { f.erofs_from_file = f.loop_devices = "no"; }, "EROFS from files", CheckStatus::Fail);
  fault([](HostFacts& f) { f.egress = "ENOENT"; }, "network policies", CheckStatus::Warn);
  fault([](HostFacts& f) { f.user_namespaces = "ENOSPC"; }, "user namespaces", CheckStatus::Fail);
  fault([](HostFacts& f) { f.cgroup_layout = "none"; }, "layout", CheckStatus::Fail);
  fault([](HostFacts& f) { f.cgroup_limits["memory"] = "no controller"; }, "memory limits", CheckStatus::Warn);
  fault([](HostFacts& f) { f.home_free_bytes = 1 << 20; }, "space", CheckStatus::Fail);
  fault([](HostFacts& f) { f.home_free_bytes = 1 << 30; }, "space", CheckStatus::Warn);
  fault([](HostFacts& f) { f.home_writable = "EACCES"; }, "DSEC_HOME", CheckStatus::Fail);
  fault([](HostFacts& f) { f.overlay_on_home = "EINVAL"; }, "writable layers", CheckStatus::Fail);
  fault([](HostFacts& f) { f.id_mapped_mounts = "EINVAL"; }, "id-mapped mounts", CheckStatus::Fail);
  fault([](HostFacts& f) { f.tools["mkfs.ext4"] = ""; }, "disk limits", CheckStatus::Warn);
  fault([](HostFacts& f) { f.mkfs_erofs = ""; }, "mkfs.erofs", CheckStatus::Fail);
  fault([](HostFacts& f) { f.init_program.reset(); }, "dsec-init", CheckStatus::Fail);
  fault([](HostFacts& f) { f.sysctl["kernel.pid_max"] = 4096; }, "kernel.pid_max", CheckStatus::Warn);
  fault([](HostFacts& f) { f.open_files_limit = 1024; }, "open files", CheckStatus::Warn);
}

TEST_CASE("looking at a host leaves nothing in its home and never fails", "[runners][doctor]") {
  const dsec::TempDirectory home(std::filesystem::temp_directory_path());
  const HostFacts facts = examine_host({.home = home.path() / "not" / "there", .examine_mkfs = {}});
  CHECK(facts.home == home.path());
  CHECK(facts.kernel_major >= 5);
  CHECK(std::filesystem::is_empty(home.path()));
  CHECK(judge_host(facts).checks.size() > 20);
}
