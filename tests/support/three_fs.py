"""A fake 3FS, mounted by the program that the C++ tests use, too."""

import signal
import subprocess
from pathlib import Path

from dsec_tool import BIN


class ThreeFs:
    """Mounted at `mount` until stop(). With rings=False its client has none."""

    def __init__(self, mount: Path, rings: bool = True):
        mount.mkdir(parents=True)
        self.mount = mount
        self.url = f"3fs://{mount}/layers"
        arguments = [] if rings else ["no-rings"]
        self.process = subprocess.Popen([BIN / "fake_three_fs", mount, *arguments], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "mounted\n"
        self.semaphore = (mount / "3fs-virt/iovs/submit-ios").readlink()

    def stop(self) -> dict[str, int]:
        """Bytes that were read, by way: "rings" and "fuse"."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        told = self.process.communicate(timeout=60)[0].split()
        return {way: int(count) for way, count in zip(told[::2], told[1::2], strict=True)}

    def kill(self) -> None:
        """What the death of a client does: the mount stays, and answers nothing but errors."""
        self.process.kill()
        self.process.wait()
        self.semaphore.unlink()
        subprocess.run(["umount", "-l", self.mount], check=True)
