"""Repositories for tests, made by git with a fixed identity and a clock that ticks."""

import os
import subprocess
from pathlib import Path


class GitRepo:
    def __init__(self, path: Path, *init: str):
        self.path, self.now = path, 1700000000
        path.mkdir(parents=True)
        self("init", "-q", "-b", "main", *init)

    def __call__(self, *args: str) -> str:
        self.now += 60
        stamp = f"{self.now} +0000"
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1",
               "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "T", "GIT_AUTHOR_EMAIL": "t@example.invalid",
               "GIT_COMMITTER_NAME": "T", "GIT_COMMITTER_EMAIL": "t@example.invalid", "GIT_AUTHOR_DATE": stamp,
               "GIT_COMMITTER_DATE": stamp}
        done = subprocess.run(["git", "-c", "safe.directory=*", "-c", "gc.auto=0", *args], cwd=self.path, env=env,
                              stdout=subprocess.PIPE, check=True)
        return done.stdout.decode().strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.path / name).write_text(text)
        self("add", "-A")
        self("commit", "-q", "--allow-empty", "-m", " ".join(files) or "again")
        return self("rev-parse", "HEAD")
