"""What the README tells people to type works as it stands there."""

import re
import subprocess
from pathlib import Path

import pytest
import rootfs
from dsec_tool import BIN

pytestmark = pytest.mark.guest_slow("the words of the README are the same there")

README = Path(__file__).resolve().parents[2] / "README.md"


def run_section(dsec, heading: str) -> str:
    """Runs the first block of a section in a shell that stops at the first failure."""
    section = README.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    script = re.search(r"```\n(.*?)```", section, flags=re.S).group(1)
    done = subprocess.run(["sh", "-eu", "-c", script], env={**dsec.env, "PATH": f"{BIN}:{dsec.env['PATH']}"}, cwd=dsec.cwd,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_branch_a_rollout(dsec):
    rootfs.import_base(dsec, "base/python")
    told = run_section(dsec, "Branch a rollout")
    assert all(name in told for name in ("rollout-1", "rollout-2", "rollout-3"))
    fork = re.search(r"^\+by (\w{22})$", told, flags=re.M)
    assert fork, told
    assert told.endswith(f"draft\ndraft\ndraft\nby {fork.group(1)}\n")


def test_reproduce_a_rollout(dsec):
    rootfs.import_base(dsec, "base/python")
    told = run_section(dsec, "Reproduce a rollout")
    assert "42\n" in told and "write" in told and told.count("2 the same, 0 different") == 2, told
    assert "<!doctype html>" in (dsec.cwd / "report.html").read_text()


def test_judge_a_submission(dsec):
    rootfs.import_base(dsec, "base/python")
    told = run_section(dsec, "Judge a submission")
    assert told.startswith("3\n") and "2 of 2 cases accepted" in told, told
