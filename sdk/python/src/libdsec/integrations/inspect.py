"""A sandbox provider for Inspect (inspect_ai), registered as `dsec`:

    Task(..., sandbox=("dsec", "base/python workspace/toolz"))

The configuration is a list of layers, or a JSON object of settings (`{"container_image": "base/python", "memory_limit_mb": 2048}`,
as DSecContainerRunArgs has them, and "backend": "microvm"), or a file with either. The edge is that of DSEC_EDGE; without it one is started.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from inspect_ai.util import ExecResult, OutputLimitExceededError, SandboxEnvironment, sandboxenv

from ..errors import DSecUsageError
from ..sandbox import Sandbox
from . import _shared

_STREAM_LIMIT = 10 << 20
_FILE_LIMIT = 100 << 20

# As the sandbox's own user, with that user's rights; the exit codes are those of errno.
_READ = '[ -e "$1" ] || exit 2; [ ! -d "$1" ] || exit 21; [ -r "$1" ] || exit 13; [ "$(wc -c < "$1")" -le "$2" ] || exit 27; exec cat -- "$1"'
_WRITE = 'if [ -d "$1" ]; then cat > /dev/null; exit 21; fi; mkdir -p -- "${1%/*}/" 2>/dev/null; { cat > "$1"; } 2>/dev/null || exit 13'
_FAILURES = {2: FileNotFoundError, 13: PermissionError, 21: IsADirectoryError}


@sandboxenv(name="dsec")
class DSecSandboxEnvironment(SandboxEnvironment):
    """One sandbox for each sample, called "default"."""

    def __init__(self, sandbox: Sandbox, workdir: str):
        super().__init__()
        self.sandbox = sandbox
        self._workdir = workdir

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Opens the client that all samples share."""
        await _shared.take(None)

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Makes the sample's sandbox."""
        if not isinstance(config, str):
            raise DSecUsageError(f"cannot make a sandbox for task {task_name!r}", ["its configuration names no layers"],
                                 ['sandbox=("dsec", "base/python")'], kind="usage")
        client = await _shared.take(None)
        try:
            args = _shared.args_of(_text_of(config), labels={"inspect-task": task_name})
            make = client.run_microvm if args.backend == "microvm" else client.run_container
            sandbox = await make(args)  # type: ignore[arg-type]
            workdir = (await sandbox.run_shell("pwd", check=True)).stdout.strip()
        finally:
            await _shared.give_back(None)
        return {"default": cls(sandbox, workdir)}

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool) -> None:
        """Removes it, also of a sample that was interrupted."""
        for environment in environments.values():
            if isinstance(environment, cls):
                await environment.sandbox.remove(force=True)

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Closes the client, which removes what is still there unless that is to be kept."""
        client = await _shared.take(None)
        if not cleanup:
            for sandbox in await client.sandboxes(labels={"inspect-task": ""}):
                sandbox.keep()
        await _shared.give_back(None)
        await _shared.give_back(None)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Removes one sandbox, or all that were made for tasks."""
        client = await _shared.take(None)
        try:
            for sandbox in [await client.sandbox(id)] if id else await client.sandboxes(all=True, labels={"inspect-task": ""}):
                await sandbox.remove(force=True)
        finally:
            await _shared.give_back(None)

    async def exec(self, cmd: list[str], input: str | bytes | None = None, cwd: str | None = None, env: dict[str, str] | None = None,
                   user: str | None = None, timeout: int | None = None, timeout_retry: bool = True, concurrency: bool = True) -> ExecResult[str]:
        """Runs a command. Raises TimeoutError, PermissionError, UnicodeDecodeError and OutputLimitExceededError."""
        result = await self.sandbox.run(cmd, input=input, workdir=posixpath.join(self._workdir, cwd or ""), env=env or {}, user=user or "",
                                        timeout=timeout)
        if result.timed_out:
            raise TimeoutError(f"Command timed out after {timeout} seconds")
        if result.cause == "cannot_execute":
            raise PermissionError(f"{cmd[0]}: {result.reason}")
        for said in (result.stdout_bytes, result.stderr_bytes):
            if len(said) > _STREAM_LIMIT:
                raise OutputLimitExceededError("10 MiB", said[:_STREAM_LIMIT].decode("utf-8", "replace"))
        said_of_it = result.detail if result.cause == "not_found" else ""
        return ExecResult(result.ok, result.exit_code, result.stdout_bytes.decode("utf-8"), result.stderr_bytes.decode("utf-8") + said_of_it)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, and the directories that it needs. Raises PermissionError and IsADirectoryError."""
        path = posixpath.join(self._workdir, file)
        result = await self.sandbox.run(["/bin/sh", "-c", _WRITE, "sh", path], input=contents)
        _raise_for(result.exit_code, path)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file. Raises FileNotFoundError, PermissionError, IsADirectoryError, UnicodeDecodeError and
        OutputLimitExceededError."""
        path = posixpath.join(self._workdir, file)
        result = await self.sandbox.run(["/bin/sh", "-c", _READ, "sh", path, str(_FILE_LIMIT)], output_limit=2 * _FILE_LIMIT)
        if result.exit_code == 27:
            raise OutputLimitExceededError("100 MiB", None)
        _raise_for(result.exit_code, path)
        return result.stdout_bytes.decode("utf-8") if text else result.stdout_bytes


def _text_of(config: str) -> str:
    """Inspect makes names of files absolute where they are some."""
    file = Path(config)
    return file.read_text() if file.is_absolute() and file.is_file() else config


def _raise_for(code: int, path: str) -> None:
    if code:
        raise _FAILURES.get(code, OSError)(code, f"sandbox file {path}")
