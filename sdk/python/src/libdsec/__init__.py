"""Sandboxes of dsec for asyncio; `libdsec.sync` has the same without it.

    async with DSecClient() as client:
        sandbox = await client.run_container(DSecContainerRunArgs("base/python", memory_limit_mb=4096))
        print((await sandbox.run_shell("python3 -V")).stdout)
"""

from .args import DSecContainerRunArgs, DSecFullVMRunArgs, DSecMicroVMRunArgs, HeaderSecret
from .client import BatchItem, DSecClient
from .command import Command, Output
from .engine import LocalEngine
from .errors import DSecBusyError, DSecCommandError, DSecConnectionError, DSecError, DSecTimeoutError, DSecUsageError
from .retries import NO_RETRIES, Retries
from .sandbox import Sandbox
from .session import Session
from .streams import Records
from .values import (Change, CommandInfo, CommandResult, ExitStatus, FileChange, FileEvent, Health, HttpResponse, Layer, LogRecord,
                     NetworkReport, Operation, SandboxInfo, SessionInfo, Snapshot, Stats, Trajectory, TrajectoryInfo)

__version__ = "0.1.0"

__all__ = [
    "NO_RETRIES", "BatchItem", "Change", "Command", "CommandInfo", "CommandResult", "DSecBusyError", "DSecClient", "DSecCommandError",
    "DSecConnectionError", "DSecContainerRunArgs", "DSecError", "DSecFullVMRunArgs", "DSecMicroVMRunArgs", "DSecTimeoutError", "DSecUsageError", "ExitStatus",
    "FileChange", "FileEvent", "HeaderSecret", "Health", "HttpResponse", "Layer", "LocalEngine", "LogRecord", "NetworkReport", "Operation",
    "Output", "Records", "Retries", "Sandbox", "SandboxInfo", "Session", "SessionInfo", "Snapshot", "Stats", "Trajectory", "TrajectoryInfo",
]
