"""Inputs with exact expected results, from the folder that DSEC_CASES names: each is made, imported, mounted, compared.

The folder has a program check.py with `make CASE DIR` and `compare CASE TREE DIR`, and a CASE/expect.json that says what
kind of input it is and whether a tree or a refusal must come out."""

import json
import os
import subprocess
from pathlib import Path

import leftovers
import pytest

CASES = Path(os.environ["DSEC_CASES"]) if os.environ.get("DSEC_CASES") else None
NAMES = sorted(path.parent.name for path in CASES.glob("*/expect.json")) if CASES else []

if not NAMES:
    pytest.skip("DSEC_CASES does not name a folder of cases", allow_module_level=True)


def expected(name: str) -> dict:
    return json.loads((CASES / name / "expect.json").read_text())


def is_layered(name: str) -> bool:
    return expected(name)["input"]["kind"] in ("oci-layout", "docker-archive") and expected(name)["outcome"] == "tree"


def check(*args) -> subprocess.CompletedProcess:
    return subprocess.run([CASES / "check.py", *args], cwd=CASES, capture_output=True, text=True, check=False, timeout=300)


def import_arguments(what: dict, made: Path) -> list[str]:
    path = made / what["path"]
    source = f"{what['kind']}:{path}"
    if what.get("ref"):
        source += ("@" if what["kind"] == "git" else ":") + what["ref"]
    arguments = [source, "--to", "/"]
    if what.get("platform"):
        arguments += ["--platform", what["platform"]]
    flags = {"unpacked_bytes": "--max-unpacked", "entries": "--max-entries", "path_bytes": "--max-path",
             "ratio": "--max-ratio"}
    for limit, value in what.get("limits", {}).items():
        arguments += [flags[limit], str(value)]
    return arguments


def left_in_store(home: Path) -> list[str]:
    blobs = [str(path) for path in (home / "store").rglob("*") if path.is_file() and "sha256" in path.parts]
    temporary = [str(path) for path in home.rglob(".tmp-*")]
    return blobs + temporary


def accepted_errors(case: dict) -> list[str]:
    outcomes = [case, *(case.get("also_accepted") or [])]
    return [outcome["error"] for outcome in outcomes if outcome["outcome"] == "refuse"]


def run_case(dsec, work: Path, name: str, *more: str):
    case = expected(name)
    made, tree = work / "made", work / "tree"
    done = check("make", name, made)
    assert done.returncode == 0, done.stdout + done.stderr
    imported = dsec.run("import", "base/case", *import_arguments(case["input"], made), *more)
    if imported.code == 0:
        tree.mkdir()
        dsec.ok("layer", "mount", "base/case", tree)
        compared = check("compare", name, tree, made)
        dsec.ok("layer", "umount", tree)
    else:
        assert imported.code == 1, str(imported)
        assert any(word in imported.err for word in accepted_errors(case)), str(imported)
        assert dsec.json("layer", "ls") == [], "a refused input left a layer"
        assert left_in_store(dsec.home) == []
        assert leftovers.mounts_below(work) == []
        compared = check("compare", name, tree, made)
    assert compared.returncode == 0, f"{compared.stdout}{compared.stderr}{imported}"


@pytest.mark.parametrize("name", NAMES)
def test_case_comes_out_as_expected(dsec, work, name):
    run_case(dsec, work, name)


@pytest.mark.parametrize("name", [name for name in NAMES if is_layered(name)])
def test_case_comes_out_the_same_when_every_layer_is_an_image_of_its_own(dsec, work, name):
    run_case(dsec, work, name, "--collapse-limit", "1")
