#include "runners/isolation/gen/seccomp_compile.h"

#include <linux/seccomp.h>

#include <cstddef>
#include <stdexcept>

namespace dsec::seccomp_gen {
namespace {

constexpr std::uint32_t kReturnAllow = SECCOMP_RET_ALLOW;

std::uint32_t return_value(Action action) {
  return action == 0 ? kReturnAllow : (SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(action));
}

bool same(const Rule& a, const Rule& b) {
  return a.clauses.size() == 1 && b.clauses.size() == 1 && a.clauses[0].action == b.clauses[0].action;
}

/// Collects instructions whose jumps name labels, and resolves them when all places are known.
class Assembler {
 public:
  using Label = std::size_t;

  Label new_label() {
    places_.push_back(kUnplaced);
    return places_.size() - 1;
  }
  void place(Label label) { places_[label] = code_.size(); }
  void load(std::size_t offset) { emit({BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(offset)}); }
  void give_back(std::uint32_t value) { emit({BPF_RET | BPF_K, 0, 0, value}); }
  void branch(std::uint16_t op, std::uint32_t value, Label if_true, Label if_false) {
    jumps_.push_back({code_.size(), if_true, if_false});
    emit({static_cast<std::uint16_t>(BPF_JMP | BPF_K | op), 0, 0, value});
  }
  std::vector<sock_filter> finish() {
    for (const Jump& jump : jumps_) {
      code_[jump.at].jt = distance(jump.at, jump.if_true);
      code_[jump.at].jf = distance(jump.at, jump.if_false);
    }
    return code_;
  }

 private:
  static constexpr std::size_t kUnplaced = static_cast<std::size_t>(-1);
  struct Jump {
    std::size_t at;
    Label if_true, if_false;
  };
  void emit(sock_filter instruction) { code_.push_back(instruction); }
  std::uint8_t distance(std::size_t from, Label to) const {
    const std::size_t target = places_.at(to);
    if (target == kUnplaced || target <= from || target - from - 1 > 255)
      throw std::runtime_error("a jump of the filter is too far");
    return static_cast<std::uint8_t>(target - from - 1);
  }
  std::vector<sock_filter> code_;
  std::vector<Jump> jumps_;
  std::vector<std::size_t> places_;
};

/// The part of one architecture.
class Section {
 public:
  Section(Assembler& out, const List& list, const Architecture& architecture) : out_(out) {
    const Rule otherwise{.clauses = {{.terms = {}, .action = list.default_action}}, .known_number = {}};
    unsigned next = 0;
    for (const auto& [number, rule] : rules_by_number(list, architecture.numbers)) {
      if (number > next) append(next, otherwise);
      append(number, rule);
      next = number + 1;
    }
    append(next, otherwise);
  }

  void emit() {
    out_.load(offsetof(seccomp_data, nr));
    search(0, ranges_.size());
    for (const auto& [label, rule] : conditional_) {
      out_.place(label);
      emit_clauses(rule);
    }
    for (const auto& [action, label] : returns_) {
      out_.place(label);
      out_.give_back(return_value(action));
    }
  }

 private:
  struct Range {
    unsigned first;
    Rule rule;
  };

  void append(unsigned first, const Rule& rule) {
    if (ranges_.empty() || !same(ranges_.back().rule, rule)) ranges_.push_back({first, rule});
  }

  Assembler::Label return_label(Action action) {
    const auto found = returns_.find(action);
    if (found != returns_.end()) return found->second;
    return returns_.emplace(action, out_.new_label()).first->second;
  }

  Assembler::Label target_of(const Rule& rule) {
    if (rule.clauses.size() == 1) return return_label(rule.clauses[0].action);
    conditional_.emplace_back(out_.new_label(), rule);
    return conditional_.back().first;
  }

  /// Emits the search in ranges [from, to); both sides of a comparison that are one range need no code of their own.
  void search(std::size_t from, std::size_t to) {
    const std::size_t middle = from + (to - from) / 2;
    const bool low_is_leaf = middle - from == 1, high_is_leaf = to - middle == 1;
    const auto low = low_is_leaf ? target_of(ranges_[from].rule) : out_.new_label();
    const auto high = high_is_leaf ? target_of(ranges_[middle].rule) : out_.new_label();
    out_.branch(BPF_JGE, ranges_[middle].first, high, low);
    if (!low_is_leaf) {
      out_.place(low);
      search(from, middle);
    }
    if (!high_is_leaf) {
      out_.place(high);
      search(middle, to);
    }
  }

  void emit_clauses(const Rule& rule) {
    unsigned loaded = 6;
    for (const Clause& clause : rule.clauses) {
      if (clause.terms.empty()) {
        out_.give_back(return_value(clause.action));
        return;
      }
      const auto next = out_.new_label();
      for (const Term& term : clause.terms) {
        // Little-endian: the lower half of an argument comes first.
        if (term.argument != loaded) out_.load(offsetof(seccomp_data, args) + 8 * term.argument);
        const auto holds = out_.new_label();
        const bool last = &term == &clause.terms.back();
        out_.branch(term.op == Term::Op::Equal ? BPF_JEQ : BPF_JSET, term.value,
                    last ? return_label(clause.action) : holds, next);
        if (!last) out_.place(holds);
        // A clause that fails may leave another argument loaded than the next one expects.
        loaded = clause.terms.size() == 1 ? term.argument : 6;
      }
      out_.place(next);
    }
  }

  Assembler& out_;
  std::vector<Range> ranges_;
  std::map<Action, Assembler::Label> returns_;
  std::vector<std::pair<Assembler::Label, Rule>> conditional_;
};

}  // namespace

std::vector<sock_filter> compile(const List& list, const std::vector<Architecture>& architectures) {
  Assembler out;
  out.load(offsetof(seccomp_data, arch));
  for (const Architecture& architecture : architectures) {
    const auto here = out.new_label(), next = out.new_label();
    out.branch(BPF_JEQ, architecture.audit_arch, here, next);
    out.place(here);
    Section(out, list, architecture).emit();
    out.place(next);
  }
  out.give_back(SECCOMP_RET_KILL_PROCESS);
  return out.finish();
}

}  // namespace dsec::seccomp_gen
