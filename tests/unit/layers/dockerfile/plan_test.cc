#include "layers/dockerfile/plan.h"

#include <catch2/catch.hpp>

#include "layers/dockerfile/operation_digest.h"

namespace dsec::layers::dockerfile {
namespace {

Plan plan(std::string_view text, const Request& request = {}) {
  return make_plan(Dockerfile::parse(text, "Dockerfile"), request, "linux/amd64", [](const NamedImage& image) {
    ImageConfig config{.env = {"PATH=/base", "IMAGE=" + image.name}};
    config.command = {"inherited"};
    if (image.name == "trigger") config.onbuild = {"ARG WHAT=x", "COPY $WHAT /app/", "RUN make"};
    if (image.name == "bad") config.onbuild = {"ENTRPOINT x"};
    if (image.name == "copies") config.onbuild = {"COPY --from=one /a /b"};
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
      "FROM base/a AS one\nFROM base/b AS two\nHEALTHCHECK x\nFROM one\nCOPY --from=0 /a /b\nFROM scratch AS "
      "last\nCOPY --from=2 x y\n";
  const Plan all = plan(text);
  REQUIRE(all.stages.size() == 3);
  CHECK(all.stages[1].on_stage == 0);
  CHECK(work<CopyFiles>(all, 0).from_stage == 1);
  CHECK(plan(text, {.target = "ONE"}).stages.size() == 1);
  CHECK(problem(text, {.target = "lost"}) == "'Dockerfile' has no stage 'lost'");
  CHECK(problem(text, {.target = "two"}) == "Dockerfile:3: HEALTHCHECK: CMD or NONE is expected, not 'x'");
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
      "FROM base/x\nENV P=/a:$PATH Q=\"b c\" \nENV old form  here\nENV P=1 R=$P\nLABEL a=b \"c d\"='$P'\nLABEL old and "
      "long\nWORKDIR "
      "/w\nWORKDIR sub/../t/\n"
      "USER me:us\nEXPOSE 80/TCP 90-91/udp\nVOLUME [\"/v\", \"/$Q\"]\nSTOPSIGNAL SIGINT\nSHELL [\"/bin/bash\", "
      "\"-ec\"]\nENTRYPOINT [\"e\"]\n"
      "CMD run it\nHEALTHCHECK NONE\n");
  const ImageConfig& config = made.stages[0].config;
  CHECK(config.env == Words{"PATH=/base", "IMAGE=base/x", "P=1", "Q=b c", "old=form  here", "R=/a:/base"});
  CHECK(config.labels == std::map<std::string, std::string>{{"a", "b"}, {"c d", "$P"}, {"old", "and long"}});
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
  const Plan script = plan("FROM x\nRUN <<EOF\n#!/bin/awk -f\nBEGIN {}\nEOF\n");
  CHECK(work<RunCommand>(script, 0).script == "#!/bin/awk -f\nBEGIN {}\n");
  CHECK(work<RunCommand>(script, 0).argv.empty());
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
      {"FROM --platform=arm64 a",
       "Dockerfile:1: FROM: --platform=arm64 is no platform like linux/amd64 or linux/arm/v7"},
      {"FROM --platform=linux/arm64 a\nRUN x",
       "Dockerfile:2: RUN: the stage is for linux/arm64, and this host runs linux/amd64"},
      {"FROM a AS b\nFROM --platform=linux/arm64 b", "Dockerfile:2: FROM: the stage 'b' is for linux/amd64"},
      {"FROM a\nRUN --mount=type=ssh x",
       "Dockerfile:2: RUN: --mount=type=ssh is not supported: bind, cache, tmpfs and secret are"},
      {"FROM a\nRUN --mount=type=cache x", "Dockerfile:2: RUN: --mount has no target"},
      {"FROM a\nRUN --mount=type=cache,target=/ x", "Dockerfile:2: RUN: --mount cannot have the target '/'"},
      {"FROM a\nRUN --mount=type=cache,target=/x,from=a x",
       "Dockerfile:2: RUN: --mount=type=cache has no 'from', or it is not supported"},
      {"FROM a\nRUN --mount=type=cache,target=/x,sharing=all x",
       "Dockerfile:2: RUN: sharing=all of --mount is unknown: shared, private or locked"},
      {"FROM a\nRUN --mount=target=/x --mount=type=tmpfs,target=/x/ y",
       "Dockerfile:2: RUN: two mounts have the target '/x'"},
      {"FROM a\nRUN --mount=type=secret,id=a,mode=9 y", "Dockerfile:2: RUN: mode=9 of --mount is no octal mode"},
      {"FROM a\nRUN --security=insecure y", "Dockerfile:2: RUN: the flag --security is unknown or not supported"},
      {"FROM a\nRUN --network=host y", "Dockerfile:2: RUN: --network=host needs leave"},
      {"FROM a\nADD --checksum=sha256:1 x /y",
       "Dockerfile:2: ADD: --checksum is of one https:// or http:// URL that stands alone"},
      {"FROM a\nADD --checksum=sha256:1 https://h/x /y",
       "Dockerfile:2: ADD: --checksum=sha256:1 is not supported: sha256:HEX is expected"},
      {"FROM a\nADD https://host/r.git#main:sub /y",
       "Dockerfile:2: ADD: a folder of a repository is not supported: 'https://host/r.git#main:sub'"},
      {"FROM a\nADD https://host/r.git?branch=main&token=1 /y",
       "Dockerfile:2: ADD: a repository's URL with a query is not supported: 'https://host/r.git?…'"},
      {"FROM a\nADD https://user:secret@host/r.git#main:sub /y",
       "Dockerfile:2: ADD: a folder of a repository is not supported: 'https://…@host/r.git#main:sub'"},
      {"FROM a\nCOPY --checksum=sha256:1 x /y", "Dockerfile:2: COPY: the flag --checksum is unknown or not supported"},
      {"FROM a\nCOPY x", "Dockerfile:2: COPY: at least one source and a destination are expected"},
      {"FROM a\nCOPY x y /z", "Dockerfile:2: COPY: with more than one source the destination '/z' has to end with '/'"},
      {"FROM a\nCOPY --chmod=u+x x /z",
       "Dockerfile:2: COPY: --chmod=u+x is not supported: an octal mode like 0644 is expected"},
      {"FROM a\nCOPY <<../../etc/passwd /z/\n../../etc/passwd\n",
       "Dockerfile:2: COPY: the name of a here-document becomes that of a file, which '../../etc/passwd' cannot be"},
      {"FROM a\nCOPY <<'..' /z/\n..\n",
       "Dockerfile:2: COPY: the name of a here-document becomes that of a file, which '..' cannot be"},
      {"FROM a\nCOPY --parents x /z", "Dockerfile:2: COPY: the flag --parents is unknown or not supported"},
      {"FROM a\nENV x", "Dockerfile:2: ENV: NAME=VALUE is expected, not 'x'"},
      {"FROM a\nENV x='", "Dockerfile:2: ENV: a quote (') is not closed"},
      {"FROM a\nENV x=${", "Dockerfile:2: ENV: '${' is not followed by a variable's name"},
      {"FROM a\nEXPOSE 80/xyz", "Dockerfile:2: EXPOSE: '80/xyz' is no port"},
      {"FROM a\nEXPOSE 70000", "Dockerfile:2: EXPOSE: '70000' is no port"},
      {"FROM a\nSHELL bash", "Dockerfile:2: SHELL: a list like [\"/bin/bash\", \"-c\"] is expected"},
      {"FROM a\nONBUILD FROM x", "Dockerfile:2: ONBUILD: FROM cannot stand behind ONBUILD"},
      {"FROM a\nONBUILD RNU x", "Dockerfile:2: ONBUILD: trigger:1: unknown instruction 'RNU'"},
      {"FROM bad",
       "Dockerfile:1: FROM: what it is FROM has an ONBUILD 'ENTRPOINT x': trigger:1: unknown instruction "
       "'ENTRPOINT'"},
      {"FROM a AS one\nFROM copies", "Dockerfile:2: ONBUILD COPY: stages and images cannot be named in a trigger"},
      {"FROM a\nSTOPSIGNAL SIGNOT", "Dockerfile:2: STOPSIGNAL: 'SIGNOT' is no signal"},
      {"FROM a\nMAINTAINER me", "Dockerfile:2: MAINTAINER: not supported"},
      {"FROM a\nHEALTHCHECK --interval=5 CMD x", "Dockerfile:2: HEALTHCHECK: '5' is no duration like 30s or 1m30s"},
      {"FROM a\nHEALTHCHECK --retries=-1 CMD x", "Dockerfile:2: HEALTHCHECK: --retries=-1 is no number of tries"},
      {"FROM a\nHEALTHCHECK --interval=5s NONE", "Dockerfile:2: HEALTHCHECK: NONE takes neither flags nor arguments"},
      {"FROM a\nUSER $nobody", "Dockerfile:2: USER: '$nobody' comes to nothing"},
  }));
  CHECK(problem(text) == expected);
}

TEST_CASE("values of flags may stand in quotes", "[layers][dockerfile]") {
  const Plan made = plan(
      "FROM x AS one\nFROM x\nARG who=7\nCOPY --from=\"one\" --chown='$who' --exclude=\"a b\" /a /b\n"
      "COPY --chown=\"$who\" a /b\n");
  CHECK(work<CopyFiles>(made, 0).from_stage == 0);
  CHECK(work<CopyFiles>(made, 0).owner == "$who");
  CHECK(work<CopyFiles>(made, 0).exclude == Words{"a b"});
  CHECK(work<CopyFiles>(made, 1).owner == "7");
}

TEST_CASE("RUN has mounts", "[layers][dockerfile]") {
  const Plan made = plan(
      "FROM x AS tools\nFROM x\nARG D=/c\nWORKDIR /w\n"
      "RUN --mount=type=cache,dst=$D,id=pip,sharing=locked,mode=0700,uid=7 "
      "--mount=from=tools,src=/a,target=b,rw --mount=type=tmpfs,target=/t,size=64m "
      "--mount=type=secret,id=key,required,env=KEY --mount=type=secret,id=a/b --mount=from=base/other,target=/o y\n");
  const std::vector<RunMount>& mounts = work<RunCommand>(made, 1).mounts;
  REQUIRE(mounts.size() == 6);
  CHECK(mounts[0].kind == RunMount::Kind::Cache);
  CHECK(mounts[0].target == "/c");
  CHECK(mounts[0].id == "pip");
  CHECK(mounts[0].sharing == RunMount::Sharing::Locked);
  CHECK(mounts[0].writable);
  CHECK(mounts[0].mode == 0700u);
  CHECK(mounts[0].uid == 7u);
  CHECK(mounts[1].target == "/w/b");
  CHECK(mounts[1].source == "/a");
  CHECK(mounts[1].from_stage == 0);
  CHECK(mounts[1].writable);
  CHECK(mounts[2].size == 64u << 20);
  CHECK(mounts[3].required);
  CHECK(mounts[3].variable == "KEY");
  CHECK(mounts[3].target.empty());
  CHECK(mounts[4].target == "/run/secrets/b");
  CHECK(mounts[5].from_image == "base/other");
  CHECK_FALSE(mounts[5].writable);
}

TEST_CASE("health checks are what Docker's config has", "[layers][dockerfile]") {
  const auto check = [](const std::string& text) { return *plan("FROM x\n" + text).stages[0].config.healthcheck; };
  const HealthCheck full = check(
      "HEALTHCHECK --interval=1m30s --timeout=1.5s --start-period=250ms --start-interval=2h --retries=3 CMD a || b\n");
  CHECK(full.test == Words{"CMD-SHELL", "a || b"});
  CHECK(full.interval == 90'000'000'000);
  CHECK(full.timeout == 1'500'000'000);
  CHECK(full.start_period == 250'000'000);
  CHECK(full.start_interval == 7'200'000'000'000);
  CHECK(full.retries == 3);
  CHECK(check("HEALTHCHECK --interval=\"30s\" --retries='2' CMD x\n").interval == 30'000'000'000);
  CHECK(check("HEALTHCHECK cmd [\"a\", \"b\"]\n").test == Words{"CMD", "a", "b"});
  CHECK(check("HEALTHCHECK none\n").test == Words{"NONE"});
}

TEST_CASE("triggers are kept as text, and run where a stage is FROM them", "[layers][dockerfile]") {
  const Plan kept = plan("FROM x\nONBUILD RUN <<EOF\none\nEOF\nONBUILD COPY a \\\n b\n");
  CHECK(kept.stages[0].config.onbuild == Words{"RUN <<EOF\none\nEOF", "COPY a  b"});
  CHECK(kept.stages[0].operations.empty());
  const Plan run = plan("FROM trigger\nRUN last\n", {.args = {{"WHAT", "src"}}});
  REQUIRE(run.stages[0].operations.size() == 3);
  CHECK(work<CopyFiles>(run, 0).sources == Words{"src"});
  CHECK(work<RunCommand>(run, 1).argv == Words{"/bin/sh", "-c", "make"});
  CHECK(run.stages[0].operations[1].instruction.brief() == "ONBUILD RUN make");
  CHECK(run.stages[0].operations[1].instruction.line == 1);
  CHECK(run.stages[0].config.onbuild.empty());
  const Plan stages = plan("FROM x AS one\nONBUILD RUN <<EOF\na\nb\nEOF\nFROM one\nENV a=b\n");
  REQUIRE(stages.stages[1].operations.size() == 1);
  CHECK(work<RunCommand>(stages, 0).argv == Words{"/bin/sh", "-c", "a\nb\n"});
}

TEST_CASE("ADD takes URLs and repositories", "[layers][dockerfile]") {
  const std::string sum(64, 'a');
  const Plan made = plan("FROM x\nADD --checksum=sha256:" + sum +
                         " https://h/p/f.txt?x=1 /d/\nADD https://h/r.git#v1 git@h:a/b.git x /s/\n");
  CHECK(work<CopyFiles>(made, 0).urls == Words{"https://h/p/f.txt?x=1"});
  CHECK(work<CopyFiles>(made, 0).checksum == "sha256:" + sum);
  CHECK(work<CopyFiles>(made, 1).repositories == Words{"https://h/r.git@v1", "git@h:a/b.git@HEAD"});
  CHECK(work<CopyFiles>(made, 1).sources == Words{"x"});
}

TEST_CASE("operations differ where a byte of theirs does", "[layers][dockerfile]") {
  const auto digest = [](const std::string& text) {
    return digest_of_texts(plan("FROM x AS one\nFROM x\n" + text).stages.back().operations.at(0));
  };
  const auto [left, right] = GENERATE(table<std::string, std::string>({
      {"COPY --from=one <<a /x\n1\na\n", "COPY --from=one <<a /x\n2\na\n"},
      {"RUN <<a\n\xff\na\n", "RUN <<a\n\xfe\na\n"},
      {"RUN <<a\n#!/bin/x\n\xff\na\n", "RUN <<a\n#!/bin/x\n\xfe\na\n"},
      {"ENV a=\xff\nRUN x\n", "ENV a=\xfe\nRUN x\n"},
      {"ARG a=\xff\nRUN x\n", "ARG a=\xfe\nRUN x\n"},
      {"ARG a=\xff\nCOPY a$a /x\n", "ARG a=\xfe\nCOPY a$a /x\n"},
      {"ARG a=\xff\nWORKDIR /$a\n", "ARG a=\xfe\nWORKDIR /$a\n"},
      {"RUN [\"ab\", \"c\"]\n", "RUN [\"a\", \"bc\"]\n"},
  }));
  CHECK(digest(left) == digest(left));
  CHECK(digest(left) != digest(right));
}

TEST_CASE("settings that double with each line end in an error", "[layers][dockerfile]") {
  std::string text = "FROM a\nENV x=0123456789\n";
  for (int i = 0; i < 40; ++i) text += "ENV x=$x$x\n";
  CHECK(problem(text).find("is longer than 131072 bytes") != std::string::npos);
}

}  // namespace dsec::layers::dockerfile
