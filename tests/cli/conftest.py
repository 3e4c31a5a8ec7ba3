"""Golden output: what a user sees, word for word."""

import os
import re
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"

# What differs between two runs or two hosts, in this order.
VARYING = [
    (re.compile(r"\b[0-9a-f]{64}\b"), "<sha256>"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)"), "<time>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?\b"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s)\b"), "<duration>"),
    (re.compile(r"\b[a-z2-7]{22}\b"), "<id>"),
]


def normalise(text: str, paths: dict[str, str]) -> str:
    for path, name in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(path, name)
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return text


@pytest.fixture
def golden(dsec, work):
    """golden(NAME, TEXT) compares with tests/cli/golden/NAME, or writes it when DSEC_ACCEPT=1."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = normalise(str(text), {str(dsec.home): "$DSEC_HOME", str(work): "$WORK"})
        if os.environ.get("DSEC_ACCEPT") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"{path} is missing: DSEC_ACCEPT=1 writes it\n{text}"
        assert text == path.read_text(), f"differs from {path}; DSEC_ACCEPT=1 takes the new text over"

    return compare
