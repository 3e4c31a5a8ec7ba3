"""How often, and after how long, a call is made again."""

from __future__ import annotations

import dataclasses
import random


@dataclasses.dataclass(frozen=True)
class Retries:
    """A call that failed without having done anything, or that has an op_id, is made again after a growing time.

    `attempts`: how often it is made in all; 1: never again. `first_delay`, `longest_delay`: seconds; each delay is
    about twice the one before. With the defaults a call gives up on an edge that cannot be reached after about four
    seconds, which is longer than one takes to be started again.
    """

    attempts: int = 6
    first_delay: float = 0.1
    longest_delay: float = 2.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures; clients that failed together do not come again together."""
        delay = min(self.first_delay * 2.0 ** (failures - 1), self.longest_delay)
        return delay * random.uniform(0.75, 1.25)


NO_RETRIES = Retries(attempts=1)
