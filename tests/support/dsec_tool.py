"""Drives the real program from tests, each with a DSEC_HOME of its own."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DSEC_BIN_DIR", ROOT / "build" / "bin"))


@dataclasses.dataclass
class Result:
    argv: list[str]
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"$ {' '.join(self.argv)}\nexit {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}"


class Dsec:
    """`dsec` with one home. Arguments may be paths; streams are text with surrogates for bytes that are no UTF-8."""

    def __init__(self, home: Path, cwd: Path):
        self.home = home
        self.cwd = cwd
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(cwd),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "DSEC_HOME": str(home),
            "DSEC_CONFIG": str(cwd / "config.yaml"),
        }
        # A sanitizer's options and the choice of mkfs.erofs belong to the run, not to a test.
        for name, value in os.environ.items():
            if name.endswith("SAN_OPTIONS") or name == "DSEC_MKFS_EROFS":
                self.env[name] = value

    def argv(self, *args) -> list[str]:
        return [str(BIN / "dsec"), *(os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg) for arg in args)]

    def run(self, *args, input: str | bytes | None = None, env: dict | None = None, cwd: Path | None = None,
            timeout: float = 120) -> Result:
        """Runs to the end, whatever the exit code. More environment goes in `env`."""
        if isinstance(input, str):
            input = input.encode("utf-8", "surrogateescape")
        done = subprocess.run(self.argv(*args), input=input, stdin=None if input is not None else subprocess.DEVNULL,
                              capture_output=True, env={**self.env, **(env or {})}, cwd=cwd or self.cwd,
                              timeout=timeout, check=False)
        text = [stream.decode("utf-8", "surrogateescape") for stream in (done.stdout, done.stderr)]
        return Result(["dsec", *self.argv(*args)[1:]], done.returncode, *text)

    def ok(self, *args, **kwargs) -> str:
        """The standard output of a command that must succeed."""
        result = self.run(*args, **kwargs)
        assert result.code == 0, str(result)
        return result.out

    def fails(self, code: int, *args, **kwargs) -> str:
        """The standard error of a command that must fail with this code."""
        result = self.run(*args, **kwargs)
        assert result.code == code, str(result)
        return result.err

    def json(self, *args, **kwargs):
        """What a command prints with -o json; several lines of JSON come back as a list."""
        dash = args.index("--") if "--" in args else len(args)
        out = self.ok(*args[:dash], "-o", "json", *args[dash:], **kwargs)
        try:
            return json.loads(out)
        except json.JSONDecodeError:
            return [json.loads(line) for line in out.splitlines()]

    def popen(self, *args, **kwargs) -> subprocess.Popen:
        """Starts it; streams are pipes of bytes unless said otherwise."""
        for stream in ("stdin", "stdout", "stderr"):
            kwargs.setdefault(stream, subprocess.PIPE)
        env = {**self.env, **kwargs.pop("env", {})}
        return subprocess.Popen(self.argv(*args), env=env, cwd=kwargs.pop("cwd", self.cwd), **kwargs)
