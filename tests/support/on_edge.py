"""`dsec` whose sandboxes are those of an edge, with a home of its own on the client's side, so that a test need not know."""

import json
import os
import subprocess
import time
from pathlib import Path

import leftovers
from dsec_tool import Dsec
from on_backend import OnBackend

# What works on the sandboxes of a context; man/dsec-context.1.md has the same list.
THERE = {"run", "create", "exec", "shell", "attach", "commands", "kill", "http", "forward", "watch", "ps", "inspect", "logs", "cp", "diff",
         "stats", "stop", "rm", "update", "wait", "pause", "resume", "snapshot", "commit", "fork", "session", "net"}
GROUPS_THERE = {"traj": {"ls", "show", "diff", "export", "rm"},
                "vm": {"screenshot", "type", "key", "click", "move", "scroll", "drag", "console", "vnc"}}


class Edge:
    """A `dsec edge` of a home, at a socket below `place`."""

    def __init__(self, home: Path, place: Path, *options: str, listen: str | None = None):
        self.listen = listen or f"unix:{place / 'edge.sock'}"
        self.tool = Dsec(home, place)
        self.log = place / "edge.log"
        self.options = options
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = self.tool.popen("edge", "--listen", self.listen, "--name", "lab", *self.options, stdin=subprocess.DEVNULL,
                                           stderr=log)
        first = self.process.stdout.readline().decode()
        assert first.startswith("listening at "), first + self.log.read_text()
        self.url = first.removeprefix("listening at ").strip()

    def end(self) -> int:
        """As an operator does; what it exits with."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(60)
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def lines(self) -> list[dict]:
        """Of its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def await_line(self, **members) -> dict:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for line in self.lines():
                if all(line.get(name) == value for name, value in members.items()):
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no line with {members}:\n{self.log.read_text()}")


class OnEdge(OnBackend):
    """What is said to the edge and what it answers is compared with the contract."""

    def __init__(self, home: Path, cwd: Path, backend: str = "container"):
        super().__init__(home, cwd, backend)
        self.place = cwd / "edge"
        self.place.mkdir()
        self.edge = Edge(home, self.place)
        from contract_proxy import ContractProxy  # needs modules that a host without edges may lack
        self.proxy = ContractProxy(self.edge.url.removeprefix("unix:"), self.place / "client.sock")
        self.client_env = {**self.env, "DSEC_HOME": str(cwd / "nothing"), "DSEC_CONFIG": str(self.place / "config.yaml")}
        (self.place / "config.yaml").write_text(f"contexts: {{lab: 'unix:{self.place / 'client.sock'}'}}\ndefaults: {{context: lab}}\n")

    def env_of(self, args, env: dict | None) -> dict:
        words = [str(arg) for arg in args if not str(arg).startswith("-")]
        there = bool(words) and (words[0] in THERE or (len(words) > 1 and words[1] in GROUPS_THERE.get(words[0], ())))
        return {**(self.client_env if there else {}), **(env or {})}

    def run(self, *args, env: dict | None = None, **kwargs):
        return super().run(*args, env=self.env_of(args, env), **kwargs)

    def popen(self, *args, env: dict | None = None, **kwargs):
        return super().popen(*args, env=self.env_of(args, env), **kwargs)

    def end(self) -> None:
        """Everything that passed was as the contract has it, and the client's side has no home of its own."""
        self.proxy.close()
        code = self.edge.end()
        assert not self.proxy.faults, "\n".join(self.proxy.faults[:10])
        assert code == 0, self.edge.log.read_text()
        assert not os.path.exists(self.cwd / "nothing"), "a verb of a context opened a home of this host"

    def clean_up(self) -> None:
        try:
            for sandbox in leftovers.sandboxes_of(self.home):
                self.run("rm", "-f", sandbox)
        finally:
            self.end()
        super().clean_up()
