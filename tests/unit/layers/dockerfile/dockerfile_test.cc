#include "layers/dockerfile/dockerfile.h"

#include <catch2/catch.hpp>

#include "layers/dockerfile/ignore.h"
#include "layers/dockerfile/words.h"

namespace dsec::layers::dockerfile {
namespace {

Dockerfile parse(std::string_view text) { return Dockerfile::parse(text, "Dockerfile"); }

std::string problem(std::string_view text) {
  try {
    parse(text);
  } catch (const Error& error) {
    return error.message() + (error.hints().empty() ? "" : " | " + error.hints()[0]);
  }
  return "none";
}

std::string replace(std::string_view text) {
  const Lookup lookup = [](const std::string& name) -> std::optional<std::string> {
    if (name == "x") return "value";
    if (name == "file") return "dir/name.tar.gz";
    if (name == "empty") return "";
    return std::nullopt;
  };
  try {
    return expand(text, {lookup, '\\'});
  } catch (const Error& error) {
    return "error: " + error.message();
  }
}

}  // namespace

TEST_CASE("instructions keep their lines, and comments and blank lines within them vanish", "[layers][dockerfile]") {
  const Dockerfile file =
      parse("\xEF\xBB\xBF# a comment\n\nfrom scratch\r\nRUN a && \\\n  # why\n\n  b\\\\\n  COPY . /x");
  REQUIRE(file.instructions.size() == 3);
  CHECK(file.instructions[0].keyword == "FROM");
  CHECK(file.instructions[0].line == 3);
  CHECK(file.instructions[1].text == "a &&   b\\\\");
  CHECK(file.instructions[2].keyword == "COPY");
  CHECK(file.instructions[2].line == 8);
}

TEST_CASE("directives stand at the top alone, and escape changes what continues a line", "[layers][dockerfile]") {
  const Dockerfile file = parse("# syntax=docker/dockerfile:1\n# escape = `\nFROM a\nRUN b `\nc \\\n");
  CHECK(file.escape == '`');
  REQUIRE(file.instructions.size() == 2);
  CHECK(file.instructions[1].text == "b c \\");
  CHECK(parse("# hello\n# escape=`\nFROM a\n").escape == '\\');
  CHECK(problem("# escape=x\nFROM a\n") == "Dockerfile:1: escape is \\ or `, not 'x'");
  CHECK(problem("# escape=`\n# escape=`\nFROM a\n") == "Dockerfile:2: the directive escape stands twice");
  CHECK(problem("# syntax=acme/frontend\nFROM a\n").starts_with("Dockerfile:1: syntax 'acme/frontend' asks"));
}

TEST_CASE("an unknown instruction is told with its line and the nearest one", "[layers][dockerfile]") {
  CHECK(problem("FROM a\n\nWROKDIR make\n") == "Dockerfile:3: unknown instruction 'WROKDIR' | did you mean WORKDIR?");
  CHECK(problem("FROM a\nRUN\n") == "Dockerfile:2: RUN: it says nothing more");
  CHECK(problem("") == "Dockerfile:1: there is no instruction");
  CHECK(problem(std::string_view("FROM a\nRUN \0", 12)) == "Dockerfile:2: a byte 0 is no text");
  CHECK(problem(std::string((1 << 20) + 1, '\n')) == "Dockerfile:1: a Dockerfile has at most 1 MiB");
}

TEST_CASE("here-documents end at their names, quoted or with tabs", "[layers][dockerfile]") {
  const Dockerfile file = parse(
      "FROM a\nCOPY <<one <<-'two' /x/\n$a # no comment\none\n\tb\n\ttwo\nRUN cat <<< x $((1<<2))\nRUN 3<<\"EOF\" "
      "sh\n\nEOF\n");
  const auto& copy = file.instructions.at(1);
  REQUIRE(copy.heredocs.size() == 2);
  CHECK(copy.heredocs[0].content == "$a # no comment\n");
  CHECK(copy.heredocs[0].expand);
  CHECK(copy.heredocs[1].content == "b\n");
  CHECK_FALSE(copy.heredocs[1].expand);
  CHECK(file.instructions.at(2).heredocs.empty());
  CHECK(file.instructions.at(3).heredocs.at(0).content == "\n");
  CHECK(problem("FROM a\nRUN <<EOF\nx\n") == "Dockerfile:2: RUN: the here-document 'EOF' has no end");
}

TEST_CASE("flags stand before the rest", "[layers][dockerfile]") {
  const Dockerfile file = parse("FROM a\nCOPY --from=b --chown=1:2 --link x --y /z\nRUN -- --x\n");
  const auto& copy = file.instructions.at(1);
  REQUIRE(copy.flags.size() == 3);
  CHECK(copy.flags[1].value == "1:2");
  CHECK_FALSE(copy.flags[2].has_value);
  CHECK(copy.text == "x --y /z");
  CHECK(file.instructions.at(2).text == "--x");
}

TEST_CASE("an instruction is told in brief, without what opens a door", "[layers][dockerfile]") {
  const auto brief = [](const std::string& text) { return parse("FROM a\n" + text).instructions.at(1).brief(); };
  CHECK(brief("ADD https://u:p@h/r.git https://h/x?token=1 a?b\t/y\n") == "ADD https://…@h/r.git https://h/x?… a?b /y");
  CHECK(brief("RUN curl https://h/x?token=1\n") == "RUN curl https://h/x?token=1");
  CHECK(brief("RUN " + std::string(80, 'x') + "\n") == "RUN " + std::string(53, 'x') + "...");
  CHECK(brief("RUN " + std::string(52, 'x') + "\xC3\xA4yyyyyyyyyy\n") == "RUN " + std::string(52, 'x') + "...");
}

TEST_CASE("variables are replaced as the reference of Dockerfiles has it", "[layers][dockerfile]") {
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"$x-${x}", "value-value"},
      {"${y:-d}${y-e}${empty:-f}${empty-g}", "def"},
      {"${x:+a}${y:+b}${empty:+c}${empty+d}", "ad"},
      {"${y:-${z:-$x}}", "value"},
      {"${y:-a}b}", "ab}"},
      {"\\$x '$x' \"$x\" \"\\$x\"", "$x $x value $x"},
      {"a\\ b\"c d\"'e'", "a bc de"},
      {"$ $1 ${y}", "$  "},
      {"${file#*/} ${file##*.} ${file%.*} ${file%%.*}", "name.tar.gz gz dir/name.tar dir/name"},
      {"${file/./-} ${file//./-} ${x/q/}", "dir/name-tar.gz dir/name-tar-gz value"},
      {"${x:?no}", "value"},
      {"${y:?no way}", "error: the variable y has no value: no way"},
      {"${x", "error: '${' is not closed by '}'"},
      {"${x:", "error: '${' is not closed by '}'"},
      {"${}", "error: '${' is not followed by a variable's name"},
      {"${x!}", "error: ${x!…} is no form of substitution"},
      {"'a", "error: a single quote is not closed"},
      {"\"a", "error: a double quote is not closed"},
  }));
  CHECK(replace(text) == expected);
}

TEST_CASE("variables can neither nest nor grow without an end", "[layers][dockerfile]") {
  std::string deep = "x";
  for (int i = 0; i < 100; ++i) deep = "${y:-" + deep + "}";
  CHECK(replace(deep) == "error: variables are nested deeper than 32");
  const Lookup large = [](const std::string&) { return std::string(100'000, 'a'); };
  CHECK_THROWS_AS(expand("$a$a", {large, '\\'}), Error);
  CHECK_THROWS_AS(expand("${a#*}", {large, '\\'}), Error);
}

TEST_CASE(".dockerignore: the last pattern that fits a path or a directory above it decides", "[layers][dockerfile]") {
  const IgnoreList list = IgnoreList::parse(
      "# c\n*.log\n/build/\n**/node_modules\n!keep/important.log\n !a/**/z \nx[0-9]?\n\\!y\n", ".dockerignore");
  CHECK(list.excludes("a.log"));
  CHECK_FALSE(list.excludes("d/a.log"));
  CHECK(list.excludes("build/x/y"));
  CHECK_FALSE(list.excludes("sub/build"));
  CHECK(list.excludes("node_modules"));
  CHECK(list.excludes("p/q/node_modules/r"));
  CHECK_FALSE(list.excludes("node_modules2"));
  CHECK_FALSE(list.excludes("a/node_modules/z"));
  CHECK(list.excludes("x1y"));
  CHECK_FALSE(list.excludes("x1/"));
  CHECK(list.excludes("!y"));
  CHECK(list.has_exceptions());
  CHECK(list.excluded_by("a.log") == 2);
  CHECK(IgnoreList::parse("**", "").excludes("a/b"));
  CHECK_FALSE(IgnoreList::parse(".\n/\n", "").excludes("a"));
  CHECK_THROWS_AS(IgnoreList::parse("a\n[", "f"), Error);
  CHECK_THROWS_AS(IgnoreList::parse("!", "f"), Error);
}

}  // namespace dsec::layers::dockerfile
