"""What the README tells people to type."""

import re
import subprocess
from pathlib import Path

from dsec_tool import BIN

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(heading: str) -> list[str]:
    section = README.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```\n(.*?)```", section, flags=re.S)


def run_script(dsec, script: str) -> str:
    """In a shell that stops at the first failure."""
    done = subprocess.run(["sh", "-eu", "-c", script], env={**dsec.env, "PATH": f"{BIN}:{dsec.env['PATH']}"}, cwd=dsec.cwd,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
