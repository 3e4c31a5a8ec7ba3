"""A registry server in a network namespace of its own, behind a link with a bandwidth and a delay (tests/bench/link.c)."""

import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from support.measuring import BIN

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from oci_registry import DockerRegistry  # noqa: E402

# RFC 2544 keeps these for measurements.
HERE, THERE = "198.18.0.1", "198.18.0.2"


class FarRegistry:
    """`rate` in bytes a second, `delay` in microseconds each way. Until stop()."""

    def __init__(self, folder: Path, rate: int, delay: int):
        self.place = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.link = self.registry = None
        try:
            # unshare has made it when sleep runs.
            while Path(f"/proc/{self.place.pid}/comm").read_text() != "sleep\n":
                pass
            within = ["nsenter", "--target", str(self.place.pid), "--net"]
            self.link = subprocess.Popen([BIN / "bench_link", str(self.place.pid), str(rate), str(delay)],
                                         stdout=subprocess.PIPE)
            if self.link.stdout.readline() != b"up\n":
                sys.exit("the link does not come up")
            for prefix, own, other in [([], HERE, THERE), (within, THERE, HERE)]:
                subprocess.run([*prefix, "ip", "address", "add", own, "peer", other, "dev", "dsec-bench"], check=True)
                subprocess.run([*prefix, "ip", "link", "set", "dsec-bench", "up"], check=True)
                subprocess.run([*prefix, "ip", "link", "set", "lo", "up"], check=True)
            self.registry = DockerRegistry(folder, address=THERE, within=within)
            self.host, self.within = self.registry.host, within
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self.registry:
            self.registry.stop()
        for process in (self.link, self.place):
            if process:
                process.send_signal(signal.SIGKILL)
                process.wait()


def round_trip(host: str) -> float:
    """Milliseconds that a connection takes, which is one round trip."""
    address, _, port = host.partition(":")
    times = []
    for _ in range(9):
        began = time.monotonic()
        socket.create_connection((address, int(port))).close()
        times.append(time.monotonic() - began)
    return statistics.median(times) * 1000
