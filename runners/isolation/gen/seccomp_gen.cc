// seccomp_gen LIST OUTPUT ARCHITECTURE=DEFINES...: compiles seccomp.list into a header with the filter as an array.
// DEFINES is what `cc -dM -E` makes of the architecture's system call numbers.
#include <linux/audit.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "runners/isolation/gen/seccomp_compile.h"

namespace {

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::uint32_t audit_arch(const std::string& name) {
  if (name == "x86_64") return AUDIT_ARCH_X86_64;
  if (name == "i386") return AUDIT_ARCH_I386;
  if (name == "aarch64") return AUDIT_ARCH_AARCH64;
  throw std::runtime_error("unknown architecture " + name);
}

void write_header(const std::string& path, const std::vector<sock_filter>& program) {
  std::ofstream out(path);
  out << "// Made by seccomp_gen from runners/isolation/seccomp.list.\n#pragma once\n\n#include <linux/filter.h>\n\n"
      << "namespace dsec::runners {\n\ninline constexpr sock_filter kSeccompProgram[] = {\n";
  for (const sock_filter& i : program)
    out << "    {" << i.code << ", " << int{i.jt} << ", " << int{i.jf} << ", " << i.k << "u},\n";
  out << "};\n\n}  // namespace dsec::runners\n";
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) throw std::runtime_error("usage: seccomp_gen LIST OUTPUT ARCHITECTURE=DEFINES...");
  const auto list = dsec::seccomp_gen::parse_list(slurp(argv[1]));
  std::vector<dsec::seccomp_gen::Architecture> architectures;
  for (int i = 3; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    auto numbers = dsec::seccomp_gen::parse_numbers(slurp(argument.substr(equals + 1)));
    if (!numbers.contains("read")) throw std::runtime_error("no system call numbers in " + argument);
    architectures.push_back({audit_arch(argument.substr(0, equals)), std::move(numbers)});
  }
  write_header(argv[2], dsec::seccomp_gen::compile(list, architectures));
  return 0;
} catch (const std::exception& error) {
  std::cerr << "seccomp_gen: " << argv[1] << ':' << error.what() << '\n';
  return 1;
}
