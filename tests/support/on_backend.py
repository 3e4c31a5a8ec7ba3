"""`dsec` whose sandboxes are all of one backend, so that a test need not know of it."""

import shutil
from pathlib import Path

import leftovers
from dsec_tool import Dsec


class OnBackend(Dsec):
    def __init__(self, home: Path, cwd: Path, backend: str):
        super().__init__(home, cwd)
        self.backend = backend

    def argv(self, *args) -> list[str]:
        if args and args[0] in ("run", "create"):
            args = (args[0], "--backend", self.backend, *args[1:])
        return super().argv(*args)

    def give_kernel(self, kernel_home: Path) -> None:
        """That of a home that has one already."""
        shutil.copytree(kernel_home / "vm", self.home / "vm", symlinks=True)

    def clean_up(self) -> None:
        """Removes all sandboxes; what is left then of them on the host is a fault."""
        for sandbox in leftovers.sandboxes_of(self.home):
            self.run("rm", "-f", sandbox)
        collected = self.run("gc")
        faults = leftovers.sweep(self.home)
        assert not faults, "left on the host after gc:\n" + "\n".join(faults) + f"\n{collected}"
