"""What the SDK is, beside what it does: the whole contract, the oldest Python, and its own words."""

import ast
import re
import subprocess
import sys

import pytest
import rootfs
from python_sdk import CONTRACT, SDK, end_home, home_with_box
from dsec_tool import BIN, ROOT
from libdsec import _wire

CONVERSIONS = ("of_wire", "of_export", "json", "members", "settings")
SOURCES = sorted([*(SDK / "src").rglob("*.py"), *(SDK / "examples").glob("*.py")])


def test_every_call_of_the_contract_is_known_and_no_other():
    theirs = {(operation["operationId"], method.upper(), path) for path, item in CONTRACT.document["paths"].items()
              for method, operation in item.items() if method != "parameters"}
    assert {(call.name, call.method, call.path) for call in _wire.CALLS} == theirs


def test_every_call_is_made_somewhere():
    names = {name for name, value in vars(_wire).items() if isinstance(value, _wire.Call)}
    text = "".join(path.read_text() for path in SOURCES if path.name != "_wire.py")
    assert [name for name in names if f"_wire.{name}" not in text] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SDK)))
def test_the_oldest_python_can_read_it(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    late = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in {("asyncio", "timeout"), ("asyncio", "TaskGroup"), ("asyncio", "Runner"), ("itertools", "batched")}]
    assert not late
    if path.is_relative_to(SDK / "src") and any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree)):
        assert "from __future__ import annotations" in path.read_text()


def test_all_that_is_public_is_explained():
    def undocumented(node, inside=""):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not child.name.startswith("_"):
                plain = any(isinstance(one, ast.Name) and one.id == "property" for one in child.decorator_list) or child.name in CONVERSIONS
                if not ast.get_docstring(child) and not plain and "__doc__" not in ast.unparse(child):
                    yield inside + child.name
                if isinstance(child, ast.ClassDef):
                    yield from undocumented(child, f"{child.name}.")

    public = [path for path in (SDK / "src/libdsec").rglob("*.py") if not path.name.startswith("_")]
    assert {path.name: found for path in public if (found := list(undocumented(ast.parse(path.read_text()))))} == {}


@pytest.fixture
def at_home(work):
    """Somebody's home and environment, with base/python; `run(ARGUMENTS...)` runs Python there."""
    tool = home_with_box(work)
    rootfs.import_base(tool, "base/python")
    environment = {**tool.env, "PATH": f"{BIN}:{tool.env['PATH']}", "PYTHONPATH": str(SDK / "src"), "TMPDIR": str(work)}

    def run(*arguments, timeout: float = 120, **options) -> str:
        done = subprocess.run([sys.executable, *map(str, arguments)], env=environment, cwd=work, capture_output=True, text=True,
                              timeout=timeout, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    end_home(tool)
    assert not list(work.glob("dsec-sdk-*")), "an engine has left its place"


def test_the_published_example_runs(at_home):
    assert re.fullmatch(r"hello from [a-z2-7]{22}\n", at_home(SDK / "examples/published.py"))


def test_the_best_of_several_is_kept(at_home):
    told = at_home(SDK / "examples/rollouts.py", 3)
    assert told.startswith("fork ") and "+++ b/workspace/tried\n@@ -0,0 +1 @@\n+" in told, told


def test_a_terminal_is_one(at_home):
    told = at_home(SDK / "examples/terminal.py", input="stty size\necho $((6 * 7))\nexit\n")
    assert "24 80" in told and "/ # echo $((6 * 7))\n42\n" in told


@pytest.mark.alone("as many sandboxes as one edge has at once")
@pytest.mark.timeout(900)
def test_many_sandboxes_work_at_once(at_home, long_run):
    count = 1000 if long_run else 100
    assert at_home(SDK / "examples/many.py", count, timeout=900).startswith(f"{count} sandboxes at once: ")


def test_the_repository_speaks_of_it_rightly(at_home, work):
    block, = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    (work / "typed.py").write_text(block)
    assert at_home(work / "typed.py").startswith("hello from ")


def test_the_readme_can_be_typed(at_home, work):
    blocks = re.findall(r"```python\n(.*?)```", (SDK / "README.md").read_text(), flags=re.S)
    assert len(blocks) >= 5
    walk, without = [block for block in blocks if "async with DSecClient() as client" in block], [block for block in blocks if "libdsec.sync" in block]
    for block in walk + without:
        (work / "typed.py").write_text(block)
        told = at_home(work / "typed.py")
        for said in re.findall(r"# prints (.*)", block):
            assert said in told, (said, told)
    within = [block for block in blocks if block not in walk + without]
    body = "".join("        " + line for block in within for line in block.splitlines(keepends=True))
    (work / "typed.py").write_text("import asyncio\nfrom libdsec import *\n\nasync def main():\n    async with DSecClient() as client:\n"
                                   "        sandbox = await client.run_container(DSecContainerRunArgs('base/python', lifetime=300))\n"
                                   f"{body}\nasyncio.run(main())\n")
    told = at_home(work / "typed.py")
    for said in re.findall(r"# prints (.*)", body):
        assert said in told, (said, told)
