"""An edge of this host's own that ends with whoever started it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Mapping, Sequence

from ._ending import to_end
from .errors import DSecError

# So that the edge ends with us however we end. In a process of its own, since what runs between fork and exec of a
# process with threads must not be Python.
_DIE_WITH_PARENT = """
import ctypes, os, sys
parent = int(sys.argv[1])
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != parent: sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class LocalEngine:
    """`dsec edge` at a socket that nobody else can use. Needs root, as running sandboxes does.

    `program`: the dsec to start; None: the one on PATH. `home`: its DSEC_HOME; None: as the environment says, else the
    host's. Sandboxes of the home are everybody's who uses it, and those that clients of this engine kept outlive it.
    `environment`: more variables for it. `options`: more of dsec-edge(1). `start_timeout`, `stop_timeout`: seconds.
    """

    def __init__(self, program: str | os.PathLike[str] | None = None, *, home: str | os.PathLike[str] | None = None,
                 environment: Mapping[str, str] | None = None, options: Sequence[str] = (), start_timeout: float = 30.0,
                 stop_timeout: float = 30.0):
        self.program = os.fspath(program) if program else "dsec"
        self.environment = {**(environment or {}), **({"DSEC_HOME": os.fspath(home)} if home else {})}
        self.options = tuple(options)
        self.start_timeout = start_timeout
        self.stop_timeout = stop_timeout
        self.address = ""
        """`unix:PATH` while it runs."""
        self._process: asyncio.subprocess.Process | None = None
        self._place: Path | None = None

    async def __aenter__(self) -> LocalEngine:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Returns when it listens; raises DSecError with what it said when it does not."""
        found = shutil.which(self.program)
        if not found:
            raise DSecError("cannot start a local engine", [f"there is no program {self.program!r}"],
                            ["install dsec, or name it: LocalEngine('/PATH/dsec')", "DSecClient('unix:/PATH') for an edge that runs"])
        self._place = Path(tempfile.mkdtemp(prefix="dsec-sdk-"))
        try:
            await asyncio.wait_for(self._begin(found, self._place), self.start_timeout)
        except BaseException as error:
            told = self.log().strip()
            await self.stop()
            if isinstance(error, (asyncio.TimeoutError, OSError, EOFError)):
                why = told or str(error) or f"it does not listen after {self.start_timeout:g} s"
                raise DSecError("cannot start a local engine", [f"{found} edge: {why}"], ["dsec doctor"]) from error
            raise

    async def stop(self) -> None:
        """Lets it answer what it was asked, and ends it. Sandboxes go on: they are not its own."""
        await to_end(self._stop(), within=self.stop_timeout + 10)

    def log(self) -> str:
        """What it has written to standard error."""
        if not self._place:
            return ""
        with contextlib.suppress(FileNotFoundError):
            return (self._place / "log").read_text(errors="replace")
        return ""

    async def _begin(self, program: str, place: Path) -> None:
        command = [program, "edge", "--listen", f"unix:{place}/edge.sock", "--name", "local", "--quiet", "--drain",
                   f"{max(1, int(self.stop_timeout / 2))}s", *self.options]
        with open(place / "log", "wb") as log:
            # Not of our terminal's group: ^C is for us, who still need it to clean up.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=log, env={**os.environ, **self.environment}, start_new_session=True)
        assert self._process.stdout is not None
        first = (await self._process.stdout.readline()).decode(errors="replace")
        prefix = "listening at "
        if not first.startswith(prefix):
            await self._process.wait()
            raise EOFError(f"it ended with exit code {self._process.returncode}")
        self.address = first[len(prefix):].strip()

    async def _stop(self) -> None:
        process, self._process, self.address = self._process, None, ""
        if process:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self.stop_timeout)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._place:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None
