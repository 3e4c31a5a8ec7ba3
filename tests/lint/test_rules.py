"""Each rule of scripts/lint finds what it forbids, and leaves alone what it allows."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The archive's host is put together here so that this file does not name it.
HOST = "deb.debian" + ".org"

FORBIDDEN = {
    "cli/a.cc": ('int f() { return system("true"); }\n', "system() and popen()"),
    "layers/b.cc": ("void f() { std::filesystem::remove_all(path); }\n", "remove_tree()"),
    "registry/c.cc": ("int f() { return ::fork(); }\n", "ChildProcess"),
    "registry/d.cc": ("int f() { return ::umount2(path, 0); }\n", "owners of mounts"),
    "core/e.cc": ("int f() { return ::open(path, O_RDONLY); }\n", "close-on-exec"),
    "cli/f.cc": ("int  f();\n", "clang-format"),
    "cli/g.cc": ("// as in issue #12\nint f();\n", "issue number"),
    "notes.md": ("a blank at the end \n", "trailing blanks"),
    "sources.md": (f"from https://{HOST}/\n", "package host"),
    "scripts/h.sh": ("#!/bin/bash\ncd $1 && rm -rf $undefined_and_unquoted/*\nlocal x=`date`\n", "shellcheck"),
}

ALLOWED = {
    "core/base/child_process.cc": "int f() { return ::vfork(); }\n",
    "cli/open.cc": "int f() { return ::open(path, O_RDONLY | O_CLOEXEC); }\n",
    "cli/said.cc": "// system() would run a shell\nint file_system(int x);\nint f() { return file_system(1); }\n",
}


@pytest.fixture
def tree(work):
    """A repository with the linter in it, and a function that lints it with these files added."""
    shutil.copytree(ROOT / "scripts", work / "scripts")
    shutil.copy(ROOT / ".clang-format", work)
    shutil.copy(ROOT / "dev", work)
    shutil.copytree(ROOT / ".ci", work / ".ci")
    (work / "tests").mkdir()
    subprocess.run(["git", "init", "-q", work], check=True)

    def lint(files: dict[str, str]) -> subprocess.CompletedProcess:
        for name, content in files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(content)
        subprocess.run(["git", "-C", work, "add", "-A"], check=True)
        return subprocess.run([work / "scripts/lint"], capture_output=True, text=True, check=False, cwd=work)

    return lint


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_planted_fault_is_found_and_named(tree, name):
    content, words = FORBIDDEN[name]
    done = tree({name: content})
    assert done.returncode == 1, done.stdout + done.stderr
    assert words in done.stdout and name in done.stdout, done.stdout
    assert ", 1 failed" in done.stdout


def test_what_the_owners_do_and_what_comments_say_is_no_fault(tree):
    done = tree(ALLOWED)
    assert done.returncode == 0, done.stdout + done.stderr
