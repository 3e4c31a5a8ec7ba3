#include "cli/command.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"

using namespace dsec;
using namespace dsec::cli;

namespace {

using Words = std::vector<std::string>;

/// A verb with one of each.
struct Sample {
  Command root{nullptr, "dsec", "Test"};
  bool flag = false;
  std::optional<bool> maybe;
  std::string name, kind = "a";
  Words labels, refs, command;
  std::optional<std::uint64_t> memory;
  std::optional<std::chrono::milliseconds> timeout;

  Command& verb() {
    Command& verb = root.verb("run", "Run");
    verb.flag("-r,--rm", flag, "Remove").flag("-t,--tty", maybe, "TTY").option("--name", "NAME", name, "Name");
    verb.options("-l,--label", "KEY=VALUE", labels, "Label").size("-m,--memory", memory, "Memory");
    verb.duration("--timeout", timeout, "Time").choice("--kind", kind, {"a", "b"}, "Kind");
    return verb;
  }
};

std::string fault(Command& verb, const Words& args) {
  try {
    verb.parse(args);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("a repeatable option takes one value each time and leaves arguments alone", "[cli][command]") {
  Sample sample;
  Command& verb = sample.verb().positionals("REF", sample.refs, "Layers");
  CHECK_FALSE(verb.parse({"-l", "a=1", "base/x", "-l", "[b,c]", "workspace/y"}));
  CHECK(sample.labels == Words{"a=1", "[b,c]"});
  CHECK(sample.refs == Words{"base/x", "workspace/y"});
}

TEST_CASE("of an option that is given twice the last counts", "[cli][command]") {
  Sample sample;
  sample.verb().parse({"--name", "one", "-m", "1k", "--name=two", "-m2k"});
  CHECK(sample.name == "two");
  CHECK(sample.memory == 2048);
}

TEST_CASE("a decimal number is finite and not negative", "[cli][command]") {
  Command root{nullptr, "dsec", "Test"};
  std::optional<double> cpus;
  Command& verb = root.verb("run", "Run").decimal("--cpus", cpus, "Cores");
  verb.parse({"--cpus", "1.5"});
  CHECK(cpus == 1.5);
  for (const char* wrong : {"nan", "inf", "-1", "1e999", "1x", ""}) {
    INFO(wrong);
    CHECK(fault(verb, {"--cpus", wrong}).find("is no number") != std::string::npos);
  }
}

TEST_CASE("a flag can be told apart from one that was not given", "[cli][command]") {
  Sample sample;
  Command& verb = sample.verb();
  verb.parse({});
  CHECK_FALSE(sample.maybe.has_value());
  verb.parse({"--tty=false", "-r"});
  CHECK(sample.maybe == false);
  CHECK(sample.flag);
}

TEST_CASE("what follows the dashes is the command whatever it looks like", "[cli][command]") {
  Sample sample;
  Command& verb = sample.verb().positionals("REF", sample.refs, "Layers").takes_command(sample.command);
  verb.parse({"base/x", "--", "ls", "--name", "-o", "json", "--"});
  CHECK(sample.command == Words{"ls", "--name", "-o", "json", "--"});
  CHECK(sample.name.empty());
}

TEST_CASE("a command may follow its sandbox without dashes", "[cli][command]") {
  Sample sample;
  std::string sandbox;
  Command& verb = sample.verb().positional("SANDBOX", sandbox, "Which").takes_command_without_dashes(sample.command);
  verb.parse({"-r", "web", "ls", "-la", "--name", "x"});
  CHECK(sandbox == "web");
  CHECK(sample.command == Words{"ls", "-la", "--name", "x"});
  CHECK(sample.flag);
}

TEST_CASE("an argument may be called like a verb", "[cli][command]") {
  Sample sample;
  Command& verb = sample.verb().positionals("REF", sample.refs, "Layers");
  verb.parse({"run", "help", "run"});
  CHECK(sample.refs == Words{"run", "help", "run"});
}

TEST_CASE("wrong values are reported with their option", "[cli][command]") {
  Sample sample;
  Command& verb = sample.verb();
  CHECK(fault(verb, {"-m", "lots"}) == "invalid value of --memory: 'lots' is no size");
  CHECK(fault(verb, {"--timeout", "soon"}) == "invalid value of --timeout: 'soon' is no duration");
  CHECK(fault(verb, {"--kind", "c"}) == "invalid value of --kind: 'c' is none of a, b");
  CHECK(fault(verb, {"--name"}) == "option '--name' needs a value");
  CHECK(fault(verb, {"--nmae", "x"}) == "unknown option '--nmae'");
  CHECK(fault(verb, {"x"}) == "unexpected argument 'x'");
}

TEST_CASE("an optional argument may follow a required one", "[cli][command]") {
  Sample sample;
  std::string sandbox, exec;
  Command& verb = sample.verb().positional("SANDBOX", sandbox, "Which").optional_positional("EXEC_ID", exec, "What");
  verb.parse({"web"});
  CHECK(exec.empty());
  verb.parse({"web", "2"});
  CHECK(sandbox == "web");
  CHECK(exec == "2");
  CHECK(fault(verb, {"web", "2", "3"}) == "unexpected argument '3'");
}

TEST_CASE("too few arguments are an error that names them", "[cli][command]") {
  Sample sample;
  Command& verb = sample.verb().positionals("REF", sample.refs, "Layers", 2);
  CHECK(fault(verb, {}) == "'dsec run' needs at least 2 REF");
  CHECK(fault(verb, {"one"}) == "'dsec run' needs at least 2 REF");
  CHECK(fault(verb, {"one", "two"}).empty());
}

TEST_CASE("help is asked for among wrong arguments, too", "[cli][command]") {
  Sample sample;
  Command& verb = sample.verb().positionals("REF", sample.refs, "Layers");
  CHECK(verb.parse({"--help"}));
  CHECK(verb.parse({"x", "-h"}));
  CHECK(verb.help().find("Usage: dsec run [OPTIONS] REF...") != std::string::npos);
}
