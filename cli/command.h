#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace dsec::cli {

class Invocation;

/// One option or argument of a command, as help, completion and man pages show it.
struct Argument {
  std::string names;  ///< "-m,--memory"; of a positional its name in capitals
  std::string value;  ///< what it takes: "SIZE", "NAME=VALUE"; empty for a flag
  std::string help;
  std::vector<std::string> choices;
  bool positional = false, repeats = false, required = false;
  int least = 0;  ///< of a positional: how many must be given
};

/// One command or group while it is declared. The flags of a verb are parsed by CLI11, of which this class is the only
/// cover: its header is slow to compile, its messages are not ours, and a sandbox may be called like a verb. Names are
/// CLI11's ("-m,--memory"); every target must live as long as the command; of an option that is given twice the last
/// counts unless its target is a list.
class Command {
 public:
  using Action = std::function<void(Invocation&)>;

  Command(Command* parent, std::string name, std::string summary);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command& group(const std::string& name, const std::string& summary);
  /// Every verb has -o,--output.
  Command& verb(const std::string& name, const std::string& summary);

  Command& flag(const std::string& names, bool& target, const std::string& help);
  /// One that can be given as --name=false, too, and whose absence means something else.
  Command& flag(const std::string& names, std::optional<bool>& target, const std::string& help);
  Command& option(const std::string& names, const std::string& value, std::string& target, const std::string& help);
  Command& option(const std::string& names, const std::string& value, std::optional<std::string>& target,
                  const std::string& help);
  Command& options(const std::string& names, const std::string& value, std::vector<std::string>& target,
                   const std::string& help);
  Command& number(const std::string& names, std::optional<std::uint64_t>& target, const std::string& help);
  Command& decimal(const std::string& names, std::optional<double>& target, const std::string& help);
  /// "512MiB", "4g": bytes.
  Command& size(const std::string& names, std::optional<std::uint64_t>& target, const std::string& help);
  /// "90s", "5m", "1h30m"; a bare number is seconds.
  Command& duration(const std::string& names, std::optional<std::chrono::milliseconds>& target,
                    const std::string& help);
  Command& choice(const std::string& names, std::string& target, const std::vector<std::string>& values,
                  const std::string& help);

  Command& positional(const std::string& name, std::string& target, const std::string& help);
  Command& optional_positional(const std::string& name, std::string& target, const std::string& help);
  /// At least `least`.
  Command& positionals(const std::string& name, std::vector<std::string>& target, const std::string& help,
                       int least = 1);

  /// What follows "--" is a command to run in a sandbox.
  Command& takes_command(std::vector<std::string>& target);
  /// The same, and "--" may be left out: options come before the positional then, as docker users type it.
  Command& takes_command_without_dashes(std::vector<std::string>& target);
  /// Its exit code is that of a command in a sandbox, so that a fault of dsec or of its user is 125.
  /// Adds --status-file, whose path goes to `target`, too.
  Command& passes_status_on(std::string& status_file);
  /// Whose sandboxes a verb works on.
  enum class Reach {
    Host,     ///< on none, or this host's whatever the context is: the store is always this one's
    Local,    ///< on this host's; refused where a context is chosen
    Context,  ///< on those of the context
  };
  Command& reaches(Reach reach) { return reach_ = reach, *this; }
  Reach reach() const { return reach_; }
  /// A paragraph below the options.
  Command& note(const std::string& text);
  Command& example(const std::string& text);
  void runs(Action action) { action_ = std::move(action); }

  /// Takes over the values; throws Error (Usage). True when help was asked for instead.
  bool parse(const std::vector<std::string>& args);
  std::string help() const;
  /// "dsec layer rm".
  std::string path() const;

  const std::string& name() const { return name_; }
  const std::string& summary() const { return summary_; }
  const Action& action() const { return action_; }
  const std::vector<std::unique_ptr<Command>>& children() const { return children_; }
  const std::vector<Argument>& arguments() const { return arguments_; }
  /// Null when there is none.
  Command* child(const std::string& name) const;
  bool status_passed_on() const { return passes_status_on_; }
  bool json() const { return output_ == "json"; }

 private:
  using Take = std::function<void(const std::string&)>;
  Command& add(Argument argument, Take take);
  std::vector<std::string> split_off_command(const std::vector<std::string>& args) const;
  void declare_to(CLI::App& flags, const std::vector<std::string>& args) const;
  void refuse_extras(const CLI::App& flags) const;
  void demand_positionals(const CLI::App& flags) const;
  std::string usage() const;

  Command* parent_;
  std::string name_, summary_;
  Action action_;
  std::vector<std::unique_ptr<Command>> children_;
  std::vector<Argument> arguments_;
  std::vector<Take> takes_;  ///< of each argument, what to do with a value
  std::vector<std::string> notes_, examples_;
  std::vector<std::string>* tail_ = nullptr;
  bool dashes_needed_ = true, passes_status_on_ = false;
  std::string output_ = "text";
  Reach reach_ = Reach::Host;
};

}  // namespace dsec::cli
