#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstring>
#include <span>
#include <stdexcept>

/// Runs a seccomp program as the kernel does; throws for an instruction that a filter of ours has no need of.
inline std::uint32_t run_filter(std::span<const sock_filter> program, const seccomp_data& data,
                                std::size_t* steps = nullptr) {
  std::uint32_t accumulator = 0;
  for (std::size_t at = 0; at < program.size(); ++at) {
    if (steps != nullptr) ++*steps;
    const sock_filter& instruction = program[at];
    switch (instruction.code) {
      case BPF_LD | BPF_W | BPF_ABS:
        if (instruction.k % 4 != 0 || instruction.k + 4 > sizeof data) throw std::runtime_error("load out of range");
        std::memcpy(&accumulator, reinterpret_cast<const char*>(&data) + instruction.k, 4);
        break;
      case BPF_JMP | BPF_JA:
        at += instruction.k;
        break;
      case BPF_JMP | BPF_JEQ | BPF_K:
        at += accumulator == instruction.k ? instruction.jt : instruction.jf;
        break;
      case BPF_JMP | BPF_JGT | BPF_K:
        at += accumulator > instruction.k ? instruction.jt : instruction.jf;
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
        at += accumulator >= instruction.k ? instruction.jt : instruction.jf;
        break;
      case BPF_JMP | BPF_JSET | BPF_K:
        at += (accumulator & instruction.k) != 0 ? instruction.jt : instruction.jf;
        break;
      case BPF_ALU | BPF_AND | BPF_K:
        accumulator &= instruction.k;
        break;
      case BPF_RET | BPF_K:
        return instruction.k;
      default:
        throw std::runtime_error("unknown instruction");
    }
  }
  throw std::runtime_error("the program does not return");
}
