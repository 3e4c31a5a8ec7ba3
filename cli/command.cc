#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

#include "core/base/error.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

// What the take of a flag gets when it is set.
constexpr const char* kOn = "on";

template <typename Number>
Number parse_number(const std::string& text) {
  Number number{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool finite = number >= 0 && number <= std::numeric_limits<Number>::max();  // "nan" and "inf" are read as well
  if (problem != std::errc{} || end != text.data() + text.size() || text.empty() || !finite)
    throw usage_error(quote(text) + " is no number");
  return number;
}

std::string joined(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

// "-m,--memory" -> {"-m", "--memory"}
std::vector<std::string> spellings(const std::string& names) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (std::size_t end; (end = names.find(',', begin)) != std::string::npos; begin = end + 1)
    out.push_back(names.substr(begin, end - begin));
  out.push_back(names.substr(begin));
  return out;
}

}  // namespace

Command::Command(Command* parent, std::string name, std::string summary)
    : parent_(parent), name_(std::move(name)), summary_(std::move(summary)) {}

Command::~Command() = default;

Command& Command::group(const std::string& name, const std::string& summary) {
  return *children_.emplace_back(std::make_unique<Command>(this, name, summary));
}

Command& Command::verb(const std::string& name, const std::string& summary) {
  Command& verb = *children_.emplace_back(std::make_unique<Command>(this, name, summary));
  verb.choice("-o,--output", verb.output_, {"text", "json"}, "Format of the output and of errors");
  return verb;
}

Command* Command::child(const std::string& name) const {
  for (const auto& command : children_)
    if (command->name_ == name) return command.get();
  return nullptr;
}

std::string Command::path() const { return parent_ ? parent_->path() + " " + name_ : name_; }

Command& Command::add(Argument argument, Take take) {
  argument.required = argument.least > 0;
  arguments_.push_back(std::move(argument));
  takes_.push_back(std::move(take));
  return *this;
}

Command& Command::flag(const std::string& names, bool& target, const std::string& help) {
  return add({.names = names, .value = {}, .help = help, .choices = {}},
             [&target](const std::string& text) { target = text == kOn; });
}

Command& Command::flag(const std::string& names, std::optional<bool>& target, const std::string& help) {
  return add({.names = names, .value = {}, .help = help, .choices = {}},
             [&target](const std::string& text) { target = text == kOn; });
}

Command& Command::option(const std::string& names, const std::string& value, std::string& target,
                         const std::string& help) {
  return add({.names = names, .value = value, .help = help, .choices = {}},
             [&target](const std::string& text) { target = text; });
}

Command& Command::option(const std::string& names, const std::string& value, std::optional<std::string>& target,
                         const std::string& help) {
  return add({.names = names, .value = value, .help = help, .choices = {}},
             [&target](const std::string& text) { target = text; });
}

Command& Command::options(const std::string& names, const std::string& value, std::vector<std::string>& target,
                          const std::string& help) {
  return add({.names = names, .value = value, .help = help + " (repeatable)", .choices = {}, .repeats = true},
             [&target](const std::string& text) { target.push_back(text); });
}

Command& Command::number(const std::string& names, std::optional<std::uint64_t>& target, const std::string& help) {
  return add({.names = names, .value = "N", .help = help, .choices = {}},
             [&target](const std::string& text) { target = parse_number<std::uint64_t>(text); });
}

Command& Command::decimal(const std::string& names, std::optional<double>& target, const std::string& help) {
  return add({.names = names, .value = "N", .help = help, .choices = {}},
             [&target](const std::string& text) { target = parse_number<double>(text); });
}

Command& Command::size(const std::string& names, std::optional<std::uint64_t>& target, const std::string& help) {
  return add({.names = names, .value = "SIZE", .help = help, .choices = {}},
             [&target](const std::string& text) { target = parse_size(text); });
}

Command& Command::duration(const std::string& names, std::optional<std::chrono::milliseconds>& target,
                           const std::string& help) {
  return add({.names = names, .value = "TIME", .help = help, .choices = {}},
             [&target](const std::string& text) { target = parse_duration(text); });
}

Command& Command::choice(const std::string& names, std::string& target, const std::vector<std::string>& values,
                         const std::string& help) {
  const std::string initial = target.empty() ? "" : " (default: " + target + ")";
  return add({.names = names, .value = joined(values, "|"), .help = help + initial, .choices = values},
             [&target, values](const std::string& text) {
               if (std::find(values.begin(), values.end(), text) == values.end())
                 throw usage_error(quote(text) + " is none of " + joined(values, ", "));
               target = text;
             });
}

Command& Command::positional(const std::string& name, std::string& target, const std::string& help) {
  return add({.names = name, .value = name, .help = help, .choices = {}, .positional = true, .least = 1},
             [&target](const std::string& text) { target = text; });
}

Command& Command::optional_positional(const std::string& name, std::string& target, const std::string& help) {
  return add({.names = name, .value = name, .help = help, .choices = {}, .positional = true},
             [&target](const std::string& text) { target = text; });
}

Command& Command::positionals(const std::string& name, std::vector<std::string>& target, const std::string& help,
                              int least) {
  return add(
      {.names = name, .value = name, .help = help, .choices = {}, .positional = true, .repeats = true, .least = least},
      [&target](const std::string& text) { target.push_back(text); });
}

Command& Command::takes_command(std::vector<std::string>& target) {
  tail_ = &target;
  return *this;
}

Command& Command::takes_command_without_dashes(std::vector<std::string>& target) {
  tail_ = &target;
  dashes_needed_ = false;
  return *this;
}

Command& Command::passes_status_on(std::string& status_file) {
  passes_status_on_ = true;
  return option("--status-file", "FILE", status_file, "Write who decided the exit code, and why, as JSON");
}

Command& Command::note(const std::string& text) {
  notes_.push_back(text);
  return *this;
}

Command& Command::example(const std::string& text) {
  examples_.push_back(text);
  return *this;
}

std::vector<std::string> Command::split_off_command(const std::vector<std::string>& args) const {
  if (!tail_) return args;
  const auto dashes = std::find(args.begin(), args.end(), "--");
  if (dashes != args.end()) tail_->assign(dashes + 1, args.end());
  return {args.begin(), dashes};
}

void Command::refuse_extras(const CLI::App& flags) const {
  std::vector<std::string> extras = flags.remaining();
  extras.erase(std::remove(extras.begin(), extras.end(), "--"), extras.end());
  if (extras.empty()) return;
  const std::string& first = extras.front();
  if (first.size() > 1 && first[0] == '-') {
    std::vector<std::string> known = {"--help"};
    for (const Argument& argument : arguments_)
      if (!argument.positional)
        for (auto& name : spellings(argument.names)) known.push_back(std::move(name));
    const std::string name = first.substr(0, first.find('='));
    Error error = usage_error("unknown option " + quote(name));
    for (const auto& near : nearest_names(name, known))
      if (near.size() > 2) error.hint(near);
    if (tail_) error.hint("options of the command in the sandbox go after --");
    throw std::move(error).hint(path() + " --help");
  }
  if (!dashes_needed_) {
    if (!tail_->empty()) throw usage_error("unexpected argument " + quote(first) + " before --");
    *tail_ = extras;
    return;
  }
  Error error = usage_error("unexpected argument " + quote(first));
  if (tail_) error.hint("the command in the sandbox goes after --");
  throw std::move(error).hint(path() + " --help");
}

void Command::demand_positionals(const CLI::App& flags) const {
  for (const Argument& argument : arguments_) {
    if (!argument.positional || static_cast<int>(flags.get_option(argument.names)->count()) >= argument.least) continue;
    const std::string count = argument.least > 1 ? "at least " + std::to_string(argument.least) + " " : "";
    throw usage_error(quote(path()) + " needs " + count + argument.names).hint(path() + " --help");
  }
}

void Command::declare_to(CLI::App& flags) const {
  flags.set_help_flag();
  flags.allow_extras();
  flags.prefix_command(!dashes_needed_);
  flags.add_flag("-h,--help");
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& argument = arguments_[i];
    const Take& take = takes_[i];
    if (!argument.positional && argument.value.empty()) {
      flags.add_flag_function(argument.names, [&take](std::int64_t count) { take(count > 0 ? kOn : ""); });
      continue;
    }
    const std::string label = argument.positional ? argument.names : spellings(argument.names).back();
    CLI::Option* option = flags.add_option(argument.names, [&take, label](const std::vector<std::string>& values) {
      for (const auto& value : values) attempt("invalid value of " + label, [&] { take(value); });
      return true;
    });
    option->multi_option_policy(argument.repeats ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
    if (!argument.positional) continue;
    // Of one that expects none CLI11 takes none.
    option->expected(std::max(1, argument.least), argument.repeats ? CLI::detail::expected_max_vector_size : 1);
    option->allow_extra_args(argument.repeats);
    option->required(argument.required);
  }
}

bool Command::parse(const std::vector<std::string>& args) {
  std::vector<std::string> own = split_off_command(args);
  const auto fault = [&](const std::string& cause) { return usage_error(cause).hint(path() + " --help"); };
  std::reverse(own.begin(), own.end());
  // Made for the one command that is run: making it for all would take longer than most commands do.
  CLI::App flags;
  declare_to(flags);
  try {
    flags.parse(std::move(own));
  } catch (const CLI::ParseError& error) {
    if (flags.get_option("--help")->count() > 0) return true;
    refuse_extras(flags);
    demand_positionals(flags);
    for (const Argument& argument : arguments_) {
      // CLI11 says "--memory: 1 required TEXT missing".
      const std::string label = spellings(argument.names).back();
      if (!argument.positional && std::string(error.what()).rfind(label + ":", 0) == 0)
        throw fault("option " + quote(label) + " needs a value");
    }
    throw fault(error.what());
  }
  if (flags.get_option("--help")->count() > 0) return true;
  refuse_extras(flags);
  demand_positionals(flags);
  return false;
}

}  // namespace dsec::cli
