"""Waiting for what is to come about."""

import time


def until(condition, seconds: float = 30) -> bool:
    """False when it has not in this time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
