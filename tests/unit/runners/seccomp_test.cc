#include <fcntl.h>
#include <linux/audit.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include "core/base/files.h"
#include "core/base/unique_fd.h"
#include "runners/isolation/gen/seccomp_compile.h"
#include "runners/isolation/gen/seccomp_list.h"
#include "runners/isolation/seccomp_filter.h"
#include "tests/unit/runners/bpf_interpreter.h"

using namespace dsec;
using namespace dsec::seccomp_gen;

namespace {

constexpr unsigned kHighest = 1000;

List our_list() { return parse_list(read_file(DSEC_SOURCE_DIR "/runners/isolation/seccomp.list")); }

std::map<std::string, unsigned> numbers_of(const std::string& name) {
  return parse_numbers(read_file(DSEC_BINARY_DIR "/runners/isolation/numbers_" + name + ".txt"));
}

struct TestedArchitecture {
  std::string name;
  std::uint32_t audit;
  std::uint32_t libseccomp;
};

std::vector<TestedArchitecture> architectures() {
#if defined(__x86_64__)
  return {{"x86_64", AUDIT_ARCH_X86_64, SCMP_ARCH_X86_64}, {"i386", AUDIT_ARCH_I386, SCMP_ARCH_X86}};
#else
  return {{"aarch64", AUDIT_ARCH_AARCH64, SCMP_ARCH_AARCH64}};
#endif
}

std::uint32_t verdict(Action action) {
  return action == 0 ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(action);
}

/// What the list says of one call, read from its rules one after the other.
std::uint32_t expected(const List& list, const std::map<unsigned, Rule>& rules, unsigned number,
                       const std::array<std::uint64_t, 6>& arguments) {
  const auto found = rules.find(number);
  if (found == rules.end()) return verdict(list.default_action);
  for (const Clause& clause : found->second.clauses) {
    bool holds = true;
    for (const Term& term : clause.terms) {
      const auto value = static_cast<std::uint32_t>(arguments[term.argument]);
      holds = holds && (term.op == Term::Op::Equal ? value == term.value : (value & term.value) != 0);
    }
    if (holds) return verdict(clause.action);
  }
  FAIL("rules without an end");
  return 0;
}

seccomp_data call(std::uint32_t arch, unsigned number, const std::array<std::uint64_t, 6>& arguments = {}) {
  seccomp_data data{};
  data.nr = static_cast<int>(number);
  data.arch = arch;
  std::copy(arguments.begin(), arguments.end(), data.args);
  return data;
}

/// Values around each that a rule compares with, in each argument, with and without bits above the 32 that count.
std::vector<std::array<std::uint64_t, 6>> interesting_arguments() {
  std::vector<std::array<std::uint64_t, 6>> result{{}};
  const std::vector<std::uint64_t> values = {0,          1,          2,          8,       9,       16,      17,
                                             37,         38,         39,         40,      41,      0x80,    0x5411,
                                             0x5412,     0x5413,     0x541c,     0x20000, 0x20008, 0x20009, 0x40000,
                                             0xffffffff, 0x10000000, 0x02000000, 0x3d0f00};
  for (const std::uint64_t value : values)
    for (unsigned argument = 0; argument < 3; ++argument)
      for (const std::uint64_t high : {0ull, 1ull << 32}) {
        std::array<std::uint64_t, 6> arguments{};
        arguments[argument] = value | high;
        result.push_back(arguments);
        if (argument == 0) {
          arguments[2] = 9;
          result.push_back(arguments);
        }
      }
  return result;
}

}  // namespace

TEST_CASE("the compiled filter decides every call of every architecture as the list says", "[runners][seccomp]") {
  const List list = our_list();
  const auto arguments = interesting_arguments();
  for (const TestedArchitecture& arch : architectures()) {
    const auto rules = rules_by_number(list, numbers_of(arch.name));
    std::size_t wrong = 0, longest = 0;
    for (unsigned number = 0; number <= kHighest; ++number)
      for (const auto& each : arguments) {
        std::size_t steps = 0;
        wrong += run_filter(runners::kSeccompProgram, call(arch.audit, number, each), &steps) !=
                 expected(list, rules, number, each);
        longest = std::max(longest, steps);
      }
    CHECK(wrong == 0);
    CHECK(longest <= 24);
  }
}

TEST_CASE("a foreign architecture ends the process, x32 and numbers beyond the table do not exist",
          "[runners][seccomp]") {
  for (const std::uint32_t arch : {std::uint32_t{AUDIT_ARCH_ARM}, std::uint32_t{AUDIT_ARCH_S390X}, 0u, 0xffffffffu})
    CHECK(run_filter(runners::kSeccompProgram, call(arch, 0)) == SECCOMP_RET_KILL_PROCESS);
  for (const TestedArchitecture& arch : architectures())
    for (const unsigned number : {0x40000000u, 0x40000001u, 0x40000200u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 5000u})
      CHECK(run_filter(runners::kSeccompProgram, call(arch.audit, number)) == verdict(ENOSYS));
}

TEST_CASE("libseccomp makes a filter of the same list that decides the same", "[runners][seccomp]") {
  const List list = our_list();
  for (const TestedArchitecture& arch : architectures()) {
    const auto rules = rules_by_number(list, numbers_of(arch.name));
    const std::unique_ptr<void, void (*)(void*)> filter(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)), seccomp_release);
    REQUIRE(filter);
    if (seccomp_arch_native() != arch.libseccomp) {
      REQUIRE(seccomp_arch_add(filter.get(), arch.libseccomp) == 0);
      REQUIRE(seccomp_arch_remove(filter.get(), seccomp_arch_native()) == 0);
    }
    // Clauses that are tried in order cannot be said to libseccomp (one rule may not look twice at an argument): those
    // calls are left to the test against the list itself.
    std::size_t said = 0;
    std::set<unsigned> unsaid;
    for (const auto& [number, rule] : rules) {
      if (rule.clauses.size() != 1 || rule.clauses[0].action == ENOSYS) continue;
      const std::uint32_t action =
          rule.clauses[0].action == 0 ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(static_cast<unsigned>(rule.clauses[0].action));
      // Under its name, which is how libseccomp tells the architectures apart; the newest calls it may not know.
      const std::unique_ptr<char, void (*)(void*)> name(
          seccomp_syscall_resolve_num_arch(arch.libseccomp, static_cast<int>(number)), std::free);
      if (name && seccomp_rule_add(filter.get(), action, seccomp_syscall_resolve_name(name.get()), 0) == 0) {
        ++said;
      } else {
        unsaid.insert(number);
      }
    }
    CHECK(said > 300);
    CHECK(unsaid.size() < 20);
    char path[] = "/tmp/dsec-seccomp-XXXXXX";
    const UniqueFd file(::mkostemp(path, O_CLOEXEC));
    REQUIRE(file);
    ::unlink(path);
    REQUIRE(seccomp_export_bpf(filter.get(), file.get()) == 0);
    REQUIRE(::lseek(file.get(), 0, SEEK_SET) == 0);
    const std::string bytes = read_all(file.get());
    std::vector<sock_filter> theirs(bytes.size() / sizeof(sock_filter));
    std::memcpy(theirs.data(), bytes.data(), bytes.size());

    std::size_t compared = 0;
    std::string differing;
    for (unsigned number = 0; number <= kHighest; ++number) {
      const auto found = rules.find(number);
      if (unsaid.contains(number) || (found != rules.end() && found->second.clauses.size() > 1)) continue;
      ++compared;
      const auto data = call(arch.audit, number);
      if (run_filter(theirs, data) != run_filter(runners::kSeccompProgram, data))
        differing += std::to_string(number) + " ";
    }
    CHECK(compared > 900);
    CHECK(differing == "");
  }
}

TEST_CASE("the calls that matter most are decided as documented", "[runners][seccomp]") {
  const auto numbers = numbers_of(architectures()[0].name);
  const auto decide = [&](const char* name, std::array<std::uint64_t, 6> arguments = {}) {
    return run_filter(runners::kSeccompProgram, call(architectures()[0].audit, numbers.at(name), arguments));
  };
  for (const char* name :
       {"read", "write", "openat", "execve", "mmap", "futex", "exit_group", "clone", "ptrace", "chroot"})
    CHECK(decide(name) == SECCOMP_RET_ALLOW);
  for (const char* name :
       {"mount",           "umount2",     "pivot_root",  "setns",         "bpf",        "keyctl", "add_key",
        "perf_event_open", "userfaultfd", "init_module", "finit_module",  "kexec_load", "reboot", "open_by_handle_at",
        "fsopen",          "open_tree",   "move_mount",  "mount_setattr", "swapon",     "syslog", "quotactl"})
    CHECK(decide(name) == verdict(EPERM));
  for (const char* name : {"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"})
    CHECK(decide(name) == verdict(ENOSYS));
  for (const std::uint64_t flag :
       {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP}) {
    CHECK(decide("clone", {flag | SIGCHLD}) == verdict(EPERM));
    CHECK(decide("unshare", {flag}) == verdict(EPERM));
  }
  CHECK(decide("clone", {CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_THREAD | CLONE_SIGHAND | CLONE_SETTLS}) ==
        SECCOMP_RET_ALLOW);
  CHECK(decide("unshare", {CLONE_FILES}) == SECCOMP_RET_ALLOW);
  CHECK(decide("socket", {AF_UNIX, SOCK_STREAM, 0}) == SECCOMP_RET_ALLOW);
  CHECK(decide("socket", {AF_VSOCK, SOCK_STREAM, 0}) == verdict(EAFNOSUPPORT));
  CHECK(decide("socket", {AF_ALG, SOCK_SEQPACKET, 0}) == verdict(EAFNOSUPPORT));
}

TEST_CASE("numbers are read from the headers' macros, through their aliases", "[runners][seccomp]") {
  const auto numbers = parse_numbers(
      "#define __NR_read 63\n#define __NR_fcntl __NR3264_fcntl\n#define __NR3264_fcntl 25\n"
      "#define __NR_loop __NR_loop\n#define __NR_syscalls 451\n#define OTHER 1\n#define __NR_odd (1 + 2)\n");
  CHECK(numbers == std::map<std::string, unsigned>{{"read", 63}, {"fcntl", 25}});
}

TEST_CASE("a program for another architecture decides as the list says, too", "[runners][seccomp]") {
  // As aarch64 has them: one table, without the calls that newer ones replaced.
  const std::map<std::string, unsigned> numbers{{"openat", 56},  {"read", 63},        {"mount", 40},   {"clone", 220},
                                                {"socket", 198}, {"personality", 92}, {"clone3", 435}, {"setns", 268}};
  const List list = our_list();
  const auto program = compile(list, {{AUDIT_ARCH_AARCH64, numbers}});
  const auto rules = rules_by_number(list, numbers);
  for (unsigned number = 0; number <= kHighest; ++number)
    for (const auto& arguments : interesting_arguments())
      REQUIRE(run_filter(program, call(AUDIT_ARCH_AARCH64, number, arguments)) ==
              expected(list, rules, number, arguments));
  CHECK(run_filter(program, call(AUDIT_ARCH_ARM, 63)) == SECCOMP_RET_KILL_PROCESS);
}

TEST_CASE("a faulty list is refused with its line", "[runners][seccomp]") {
  const auto fails = [](const char* text, const std::string& with) {
    try {
      parse_list(text);
    } catch (const std::runtime_error& error) {
      return std::string(error.what()).rfind(with, 0) == 0;
    }
    return false;
  };
  CHECK(fails("allow read\n", "0: no 'default errno'"));
  CHECK(fails("default errno ENOSYS\nallow\n  read read\n", "3: read is listed twice"));
  CHECK(fails("default errno EWHAT\n", "1: unknown error name"));
  CHECK(fails("default errno EPERM\nrule clone errno EPERM if arg7 == 1\n", "2: no argument"));
  CHECK(fails("default errno EPERM\nrule clone errno EPERM if arg0 == 1\n", "0: the rules of clone"));
  CHECK(fails("default errno EPERM\n  read\n", "2: names without"));
}
