"""dsec.yaml and dsec.lock through the verbs that read and write them. No root: nothing here runs a step."""

import copy
import json
import platform
import re

import jsonschema
import pytest
from dsec_tool import ROOT
from git_repo import GitRepo

DOCUMENT = {
    "version": 1,
    "layers": {
        "base/a": {"from": "dir:a", "compress": "none", "tag": "${TAG:-1}", "labels": {"team": "x"}},
        "workspace/w": {"on": "base/a", "scrub": ["/x"], "keep": ["/y"], "steps": [
            {"git": {"url": "./r", "rev": "main", "history": "none", "to": "/workspace"}},
            {"copy": {"from": "extra", "to": "/srv/", "mode": "0600"}}, {"env": {"A": "b"}}, {"workdir": "/srv"},
            {"user": "1000"}]},
        "toolkit/t": {"from": "dir:a", "to": "/opt/t"}},
    "environments": {
        "e": {"base": "base/a", "workspace": "workspace/w", "toolkits": ["toolkit/t"], "env": {"X": 1}, "user": "root",
              "workdir": "/srv", "hostname": "box", "backend": "container", "devices": ["/dev/null"],
              "limits": {"cpus": 1.5, "memory": "1GiB", "pids": 10, "disk": 1000, "output": "1MiB", "class": "batch"},
              "lifetime": {"idle": "5m", "idle_pause": "30s", "max": "3h"}, "labels": {"suite": "demo"},
              "network": {"allow": ["example.org"], "deny": [], "strict": True, "phase": "agent", "intercept_tls": True,
                          "limits": {"connections": 3}, "phases": {"verify": "none", "setup": {"allow": ["10.0.0.0/8"]}}},
              "accept_conflicts": True},
        "plain": {"base": "base/a", "network": "host"}},
    "functions": {"f": {"environment": "plain", "command": ["sh", "main.sh"], "limits": {"time": "2s", "memory": "64MiB"},
                        "pool": 2}}}


@pytest.fixture
def project(work):
    """The files of DOCUMENT, and a function that writes it, or another, as dsec.yaml: JSON is YAML."""
    (work / "a").mkdir()
    (work / "a" / "f").write_text("1")
    (work / "extra").write_text("e")
    repo = GitRepo(work / "r")
    repo.head = repo.commit(x="of the commit\n")

    def write(document=DOCUMENT, name="dsec.yaml"):
        (work / name).write_text(json.dumps(document))

    write.repo = repo
    write()
    return write


@pytest.fixture
def validator(dsec):
    schema = dsec.json("env", "schema")
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def objects(node, path=()):
    """Paths of all mappings of a document whose keys the format fixes."""
    free = {("layers",), ("environments",), ("functions",)}
    if isinstance(node, dict):
        if path not in free and path[-1:] not in (("env",), ("labels",)):
            yield path
        for key, value in node.items():
            yield from objects(value, (*path, key))
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from objects(value, (*path, index))


def at(document, path):
    for part in path:
        document = document[part]
    return document


def test_the_schema_and_the_program_agree_on_what_is_well_formed(dsec, project, validator):
    assert list(validator.iter_errors(DOCUMENT)) == []
    assert [line["name"] for line in dsec.json("env", "ls")] == ["e", "plain"]
    # A key that nobody knows, in each mapping there is.
    for path in objects(DOCUMENT):
        wrong = copy.deepcopy(DOCUMENT)
        at(wrong, path)["nonsense"] = "x"
        assert list(validator.iter_errors(wrong)), path
        project(wrong)
        assert "nonsense" in dsec.fails(2, "env", "ls"), path


def keys_of(schema) -> set[str]:
    found = set(schema.get("properties", {}))
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), schema.get("items"),
             schema.get("additionalProperties")]
    return found.union(*(keys_of(part) for part in parts if isinstance(part, dict)))


def test_the_manual_tells_of_every_key(validator):
    pages = "".join((ROOT / "man" / page).read_text() for page in ("dsec.yaml.5.md", "dsec-fn.1.md"))
    assert keys_of(validator.schema) <= set(re.findall(r"`([a-z_]+):?`", pages))


@pytest.mark.parametrize("path, value", [
    (("version",), "one"), (("layers", "base/a", "compress"), "gzip"), (("layers", "workspace/w", "steps"), {"run": "x"}),
    (("layers", "workspace/w", "on"), "nonsense"), (("layers", "workspace/w", "steps", 1, "copy", "to"), None),
    (("environments", "e", "limits", "cpus"), "many"), (("environments", "e", "limits", "memory"), "1 GB of it"),
    (("environments", "e", "limits", "pids"), 0), (("environments", "e", "lifetime", "max"), "soon"),
    (("environments", "e", "network"), "some"), (("environments", "e", "hostname"), "a b"),
    (("environments", "e", "toolkits"), "toolkit/t"), (("environments", "e", "accept_conflicts"), "perhaps"),
    (("environments", "e", "env"), {"A=B": "x"}), (("layers", "workspace/w", "steps", 2, "env"), {"": "x"}),
    (("environments", "e", "base"), None), (("functions", "f", "environment"), None)])
def test_a_value_that_is_wrong_is_wrong_for_both(dsec, project, validator, path, value):
    wrong = copy.deepcopy(DOCUMENT)
    if value is None:
        del at(wrong, path[:-1])[path[-1]]
    else:
        at(wrong, path[:-1])[path[-1]] = value
    assert list(validator.iter_errors(wrong))
    project(wrong)
    dsec.fails(2, "env", "ls")


def test_a_build_pins_what_it_made_and_from_what(dsec, work, project):
    dsec.ok("build", "--arg", "TAG=2")
    lock = json.loads((work / "dsec.lock").read_text())
    layers = {ref: dsec.json("layer", "inspect", ref)[0] for ref in ("base/a:2", "workspace/w:latest", "toolkit/t:latest")}
    assert {ref: layer["digest"] for ref, layer in lock["layers"].items()} == {
        ref: layer["digest"] for ref, layer in layers.items()}
    inputs = lock["layers"]["workspace/w:latest"]["inputs"]
    assert inputs["step1.commit"] == project.repo.head and inputs["step2.content"].startswith("sha256:")
    assert lock["environments"]["e"] == [layers[ref]["digest"] for ref in ("base/a:2", "workspace/w:latest", "toolkit/t:latest")]
    assert lock["args"] == {"TAG": "2"}
    assert lock["builder"] == dsec.ok("version").split()[1]
    assert lock["kernel"] == platform.release()
    assert lock["platform"] == {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[platform.machine()]
    assert lock["mkfs"] == layers["base/a:2"]["manifest"]["provenance"]["mkfs"]
    assert re.fullmatch(r"1\.\d+(\.\d+)?.*", lock["mkfs"])
    dsec.ok("build", "--arg", "TAG=2", "--locked")
    # The layer has the configuration and the files of its steps.
    config = layers["workspace/w:latest"]["manifest"]["config"]
    assert (config["env"], config["workdir"], config["user"]) == (["A=b"], "/srv", "1000")
    files = dsec.ok("layer", "files", "workspace/w")
    assert "workspace/x" in files and ".git" not in files and "srv/extra" in files


def test_another_file_has_a_lock_of_its_own(dsec, work, project):
    only = {"version": 1, "layers": {"base/b": {"from": "dir:${WHERE}"}}, "environments": {"b": {"base": "base/b"}}}
    project(only, "other.yaml")
    assert "${WHERE} has no value" in dsec.fails(2, "build", "-f", "other.yaml")
    dsec.ok("build", "-f", "other.yaml", "--arg", "WHERE=a")
    assert (work / "other.lock").exists() and not (work / "dsec.lock").exists()
    assert dsec.ok("layer", "files", "base/b").split()[-1].endswith("f")


def test_environments_are_listed_locked_and_shown(dsec, work, project):
    dsec.ok("build")
    (work / "dsec.lock").unlink()
    assert [line["locked"] for line in dsec.json("env", "ls")] == [False, False]
    assert dsec.ok("env", "lock").endswith("dsec.lock\n") and (work / "dsec.lock").exists()
    assert dsec.json("env", "ls")[0] == {"name": "e", "base": "base/a:1", "workspace": "workspace/w:latest",
                                         "toolkits": ["toolkit/t:latest"], "locked": True}
    table = dsec.ok("env", "ls").splitlines()
    assert table[0].split() == ["NAME", "BASE", "WORKSPACE", "TOOLKITS", "LOCKED"] and table[2].split() == [
        "plain", "base/a:1", "yes"]
    shown = dsec.json("env", "inspect", "e")
    spec = shown["spec"]
    assert len(shown["layers"]) == 3 and spec["labels"] == {"suite": "demo"}
    assert (spec["limits"]["pids"], spec["lifetime_ms"], spec["idle_ms"]) == (10, 3 * 3600_000, 300_000)
    # What the lock pins stays, whatever the tag means by now.
    pinned = shown["layers"][0]["digest"]
    (work / "a" / "f").write_text("2")
    dsec.ok("import", "base/a:1", "dir:a")
    assert dsec.json("env", "inspect", "e")["layers"][0]["digest"] == pinned
    moved = dsec.run("env", "check")
    assert moved.code == 3 and "moved: base/a:1" in moved.out


def test_a_layer_of_steps_is_made_again_and_compared(dsec, work, project):
    dsec.ok("build")
    assert "the same layer" in dsec.ok("layer", "verify", "--rebuild", "workspace/w")
    before = dsec.json("layer", "ls", "-a")
    (work / "extra").write_text("other")
    result = dsec.run("layer", "verify", "--rebuild", "workspace/w")
    assert result.code == 3 and "input step2.content: was sha256:" in result.out and "another layer" in result.out
    assert dsec.json("layer", "ls", "-a") == before
    assert "--file instead" in dsec.fails(2, "layer", "verify", "--rebuild", "workspace/w", "--from", "dir:a")
    run = copy.deepcopy(DOCUMENT)
    run["layers"]["workspace/w"]["steps"].append({"run": "make"})
    project(run)
    assert "step 6/6 (run: make) runs a command" in dsec.fails(1, "layer", "verify", "--rebuild", "workspace/w")
    (work / "dsec.yaml").unlink()
    assert "--file with the dsec.yaml" in dsec.fails(2, "layer", "verify", "--rebuild", "workspace/w")


def test_layers_are_found_by_kind_and_label(dsec, work, project):
    dsec.ok("build")
    dsec.ok("import", "toolkit/u", "dir:a", "-l", "team=y", "-l", "stage=test")

    def names(*flags):
        return [line.split(":")[0] for line in dsec.ok("layer", "ls", "-q", *flags).split()]

    assert names("--kind", "toolkit") == ["toolkit/t", "toolkit/u"]
    assert names("-l", "team") == ["base/a", "toolkit/u"]
    assert names("-l", "team=y", "-l", "stage") == ["toolkit/u"]
    assert names("-l", "team=z") == []


def test_compressed_layers_are_one_blob_and_hold_the_same_tree(dsec, work, project):
    (work / "a" / "big").write_text("the same line again\n" * 20000)
    dsec.ok("import", "base/plain", "dir:a")
    compressed = {"version": 1, "layers": {"base/zstd": {"from": "dir:a", "compress": "zstd"}}}
    project(compressed)
    dsec.ok("build")
    dsec.ok("import", "base/lz4", "dir:a", "--compress", "lz4")
    plain = dsec.json("layer", "inspect", "base/plain")[0]
    for name in ("zstd", "lz4"):
        layer = dsec.json("layer", "inspect", f"base/{name}")[0]
        [image] = layer["manifest"]["images"]
        assert [blob["role"] for blob in image["blobs"]] == ["meta"] and image["compression"] == name
        assert layer["bytes"] < plain["bytes"] / 4
        assert dsec.ok("layer", "files", f"base/{name}") == dsec.ok("layer", "files", "base/plain")


def test_what_differs_between_layers_is_told_with_code_3(dsec, work, project):
    dsec.ok("import", "base/one", "dir:a")
    (work / "a" / "f").write_text("22")
    (work / "a" / "new").write_text("n")
    dsec.ok("import", "base/two", "dir:a")
    told = dsec.run("layer", "diff", "base/one", "base/two")
    assert told.code == 3, str(told)
    lines = {line.split(" (")[0] for line in told.out.splitlines()}
    assert {"A /new", "C /f"} <= lines <= {"A /new", "C /f", "C /"}, told.out
    back = dsec.run("layer", "diff", "base/two", "base/one")
    assert back.code == 3 and "D /new" in back.out
    assert dsec.ok("layer", "diff", "base/one", "base/one") == ""
