#include "layers/dockerfile/plan.h"

#include <catch2/catch.hpp>

namespace dsec::layers::dockerfile {
namespace {

Plan plan(std::string_view text, const Request& request = {}) {
  return make_plan(Dockerfile::parse(text, "Dockerfile"), request, "linux/amd64",
                   [](const std::string& image, const Instruction&) {
                     ImageConfig config{.env = {"PATH=/base", "IMAGE=" + image}};
                     config.command = {"inherited"};
                     return config;
                   });
}

std::string problem(std::string_view text, const Request& request = {}) {
  try {
    plan(text, request);
  } catch (const Error& error) {
    return error.message();
  }
  return "none";
}

template <typename Work>
const Work& work(const Plan& made, std::size_t operation) {
  return std::get<Work>(made.stages.back().operations.at(operation).work);
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("only the stages that the target needs are planned", "[layers][dockerfile]") {
  const char* text =
      "FROM base/a AS one\nFROM base/b AS two\nHEALTHCHECK CMD x\nFROM one\nCOPY --from=0 /a /b\nFROM scratch AS "
      "last\nCOPY --from=2 x y\n";
  const Plan all = plan(text);
  REQUIRE(all.stages.size() == 3);
  CHECK(all.stages[1].on_stage == 0);
  CHECK(work<CopyFiles>(all, 0).from_stage == 1);
  CHECK(plan(text, {.target = "ONE"}).stages.size() == 1);
  CHECK(problem(text, {.target = "lost"}) == "'Dockerfile' has no stage 'lost'");
  CHECK(problem(text, {.target = "two"}) ==
        "Dockerfile:3: HEALTHCHECK: health checks are not supported: a layer's config does not carry them");
}

TEST_CASE("arguments have their scopes", "[layers][dockerfile]") {
  const Plan made = plan(
      "ARG V=1\nARG W=$V.2\nFROM base/x:$W\nARG V\nARG TARGETARCH\nARG only=d\nENV A=$V$W$TARGETARCH only=env\nRUN "
      "echo $A\n",
      {.args = {{"V", "9"}}});
  CHECK(made.stages[0].image == "base/x:9.2");
  CHECK(made.stages[0].config.env == Words{"PATH=/base", "IMAGE=base/x:9.2", "A=9amd64", "only=env"});
  const auto& run = work<RunCommand>(made, 0);
  CHECK(run.argv == Words{"/bin/sh", "-c", "echo $A"});
  CHECK(run.args == std::map<std::string, std::string>{{"V", "9"}, {"TARGETARCH", "amd64"}});
  CHECK(problem("FROM a\nARG NAME\n", {.args = {{"NMAE", "1"}}}) == "'Dockerfile' has no ARG NMAE");
}

TEST_CASE("settings become the config", "[layers][dockerfile]") {
  const Plan made = plan(
      "FROM base/x\nENV P=/a:$PATH Q=\"b c\" \nENV old form  here\nENV P=1 R=$P\nLABEL a=b \"c d\"='$P'\nWORKDIR "
      "/w\nWORKDIR sub/../t/\n"
      "USER me:us\nEXPOSE 80 90-91/udp\nVOLUME [\"/v\", \"/$Q\"]\nSTOPSIGNAL SIGINT\nSHELL [\"/bin/bash\", "
      "\"-ec\"]\nENTRYPOINT [\"e\"]\n"
      "CMD run it\nHEALTHCHECK NONE\n");
  const ImageConfig& config = made.stages[0].config;
  CHECK(config.env == Words{"PATH=/base", "IMAGE=base/x", "P=1", "Q=b c", "old=form  here", "R=/a:/base"});
  CHECK(config.labels == std::map<std::string, std::string>{{"a", "b"}, {"c d", "$P"}});
  CHECK(config.workdir == "/w/t");
  CHECK(config.user == "me:us");
  CHECK(config.exposed_ports == Words{"80/tcp", "90/udp", "91/udp"});
  CHECK(config.volumes == Words{"/v", "/b c"});
  CHECK(config.stop_signal == "SIGINT");
  CHECK(config.entrypoint == Words{"e"});
  CHECK(config.command == Words{"/bin/bash", "-ec", "run it"});
  CHECK(work<MakeDirectory>(made, 1).path == "/w/t");
  CHECK(plan("FROM base/x\nENTRYPOINT e\n").stages[0].config.command.empty());
}

TEST_CASE("RUN takes its three forms", "[layers][dockerfile]") {
  const Plan made = plan(
      "FROM x\nRUN [\"a\", \"b\"]\nRUN [ -e x ]\nRUN <<EOF\none\ntwo\nEOF\nRUN cat <<A >/x && cat <<B\n1\nA\n2\nB\n");
  CHECK(work<RunCommand>(made, 0).argv == Words{"a", "b"});
  CHECK(work<RunCommand>(made, 1).argv == Words{"/bin/sh", "-c", "[ -e x ]"});
  CHECK(work<RunCommand>(made, 2).argv == Words{"/bin/sh", "-c", "one\ntwo\n"});
  CHECK(work<RunCommand>(made, 3).argv == Words{"/bin/sh", "-c", "cat <<A >/x && cat <<B\n1\nA\n2\nB\n"});
}

TEST_CASE("COPY and ADD", "[layers][dockerfile]") {
  const Plan made = plan(
      "FROM x\nENV d=/dst\nWORKDIR /w\nCOPY --chown=1:2 --chmod=0750 --exclude=*.o --exclude=t a b ./\nADD [\"x y\", "
      "\"$d\"]\n"
      "COPY <<name <<'raw' /dst/\n$d \"q\"\nname\n$d\nraw\nCOPY --from=base/other /a .\n");
  const auto& first = work<CopyFiles>(made, 1);
  CHECK(first.sources == Words{"a", "b"});
  CHECK(first.to == "/w");
  CHECK(first.into);
  CHECK(first.owner == "1:2");
  CHECK(first.mode == 0750u);
  CHECK(first.exclude == Words{"*.o", "t"});
  const auto& second = work<CopyFiles>(made, 2);
  CHECK(second.unpack);
  CHECK(second.sources == Words{"x y"});
  CHECK(second.to == "/dst");
  CHECK_FALSE(second.into);
  const auto& third = work<CopyFiles>(made, 3);
  REQUIRE(third.inlines.size() == 2);
  CHECK(third.inlines[0].name == "name");
  CHECK(third.inlines[0].content == "/dst \"q\"\n");
  CHECK(third.inlines[1].content == "$d\n");
  CHECK(work<CopyFiles>(made, 4).from_image == "base/other");
}

TEST_CASE("what is wrong or not supported is told with line and instruction", "[layers][dockerfile]") {
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"RUN x", "Dockerfile:1: RUN: a stage begins with FROM, and before it only ARG may stand"},
      {"ARG a", "Dockerfile:1: there is no FROM"},
      {"FROM a b", "Dockerfile:1: FROM: FROM IMAGE or FROM IMAGE AS NAME is expected"},
      {"FROM a AS 1x", "Dockerfile:1: FROM: '1x' is no name for a stage"},
      {"FROM a AS x\nFROM b AS X", "Dockerfile:2: FROM: line 1 has a stage 'x' already"},
      {"FROM $nothing", "Dockerfile:1: FROM: '$nothing' comes to nothing"},
      {"FROM --platform=linux/arm64 a",
       "Dockerfile:1: FROM: --platform=linux/arm64 is not supported: this build is for linux/amd64"},
      {"FROM a\nRUN --mount=type=cache,target=/x y", "Dockerfile:2: RUN: the flag --mount is unknown or not supported"},
      {"FROM a\nRUN --network=host y", "Dockerfile:2: RUN: --network=host needs leave"},
      {"FROM a\nRUN <<EOF\n#!/usr/bin/python3\nEOF",
       "Dockerfile:2: RUN: a here-document with its own interpreter is not supported"},
      {"FROM a\nADD https://host/x /y", "Dockerfile:2: ADD: files are not fetched from the network: 'https://host/x'"},
      {"FROM a\nADD --checksum=sha256:1 x /y", "Dockerfile:2: ADD: the flag --checksum is unknown or not supported"},
      {"FROM a\nCOPY x", "Dockerfile:2: COPY: at least one source and a destination are expected"},
      {"FROM a\nCOPY x y /z", "Dockerfile:2: COPY: with more than one source the destination '/z' has to end with '/'"},
      {"FROM a\nCOPY --chmod=u+x x /z",
       "Dockerfile:2: COPY: --chmod=u+x is not supported: an octal mode like 0644 is expected"},
      {"FROM a\nCOPY --parents x /z", "Dockerfile:2: COPY: the flag --parents is unknown or not supported"},
      {"FROM a\nENV x", "Dockerfile:2: ENV: NAME=VALUE is expected, not 'x'"},
      {"FROM a\nENV x='", "Dockerfile:2: ENV: a quote (') is not closed"},
      {"FROM a\nENV x=${", "Dockerfile:2: ENV: '${' is not followed by a variable's name"},
      {"FROM a\nEXPOSE 80/xyz", "Dockerfile:2: EXPOSE: '80/xyz' is no port"},
      {"FROM a\nEXPOSE 70000", "Dockerfile:2: EXPOSE: '70000' is no port"},
      {"FROM a\nSHELL bash", "Dockerfile:2: SHELL: a list like [\"/bin/bash\", \"-c\"] is expected"},
      {"FROM a\nONBUILD RUN x", "Dockerfile:2: ONBUILD: not supported: a layer's config does not carry it"},
      {"FROM a\nMAINTAINER me", "Dockerfile:2: MAINTAINER: not supported"},
      {"FROM a\nHEALTHCHECK --interval=5m CMD x",
       "Dockerfile:2: HEALTHCHECK: the flag --interval is unknown or not supported"},
      {"FROM a\nUSER $nobody", "Dockerfile:2: USER: '$nobody' comes to nothing"},
  }));
  CHECK(problem(text) == expected);
}

TEST_CASE("settings that double with each line end in an error", "[layers][dockerfile]") {
  std::string text = "FROM a\nENV x=0123456789\n";
  for (int i = 0; i < 40; ++i) text += "ENV x=$x$x\n";
  CHECK(problem(text).find("is longer than 131072 bytes") != std::string::npos);
}

}  // namespace dsec::layers::dockerfile
