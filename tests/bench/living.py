"""What sandboxes do beyond running commands, against what that costs at least:
- a replay of 1,000 recorded commands, against the time of the commands themselves (goal 1.1);
- resume of a paused idle sandbox (goal 3 ms);
- 100 forks of a sandbox with 50 MiB of changes, against the room that the changes take once (goal 1.2: a fork has a few
  small files of its own);
- a function call of /bin/true from the pool, against fork and exec of the same by the same process (goal 1.5), and how
  many calls a second a pool stands that is refilled meanwhile (goal 150);
- what a limit lets a sandbox have, against the limit: cores, processor time of a call, memory (goal: within 5 %).
Needs root."""

import statistics
import sys

from support.measuring import BIN, LONG, PAIRS, compare, home_with_layer, number, numbers, tell

OURS = BIN / "bench_living"


def median_ratio(what: str, measure) -> tuple[float, float, float]:
    """Of pairs that come from one run: the medians of floor, of ours, and of their ratios."""
    pairs = [measure() for _ in range(PAIRS)]
    for floor, ours in pairs:
        print(f"  {what}: floor {floor:.0f} us, dsec {ours:.0f} us", flush=True)
    return (statistics.median(floor for floor, _ in pairs), statistics.median(ours for _, ours in pairs),
            statistics.median(ours / floor for floor, ours in pairs))


def replay() -> bool:
    count = 1000 if LONG else 200
    by_hand = []

    def measure() -> tuple[float, float]:
        replayed, own, given = numbers(OURS, "replay", "base/true", count)
        by_hand.append(given)
        return own, replayed

    own, replayed, ratio = median_ratio(f"replay of {count} commands", measure)
    return tell(ratio <= 1.1, f"replay of {count} commands: {replayed / count:.0f} us each, {ratio:.2f} x the {own / count:.0f}"
                f" us of the command itself; given by hand {statistics.median(by_hand) / count:.0f} us each", "1.10")


def resume() -> bool:
    took = statistics.median(number(OURS, "resume", "base/true", 50) for _ in range(PAIRS)) / 1000
    return tell(took <= 3, f"resume of a paused idle sandbox: {took:.2f} ms", "3 ms")


def forks() -> bool:
    changed, taken, each = numbers(OURS, "forks", "base/true", 100)
    return tell(taken / changed <= 1.2, f"100 forks of {changed:.0f} MiB of changes: {taken:.1f} MiB, {taken / changed:.2f} x one"
                f" copy; {each:.1f} ms each", "1.20")


def calls() -> bool:
    warm = compare("warm call of true", 1.5, lambda: number(BIN / "bench_sandboxes", "fork", "base/true", 200),
                   lambda: number(OURS, "call", "base/true", 64))
    rate = statistics.median(number(OURS, "calls", "base/true", 2000 if LONG else 400) for _ in range(3))
    return tell(rate >= 150, f"calls one after the other, by two callers: {rate:.0f}/s", "150/s") and warm


def limits() -> bool:
    met = True
    for what, unit, mode, amount in [("cores", "", "cpus", 5), ("processor time of a call", " ms", "cpu-time", 1000),
                                     ("memory of a call", " MiB", "memory", 256)]:
        allowed, used = numbers(OURS, mode, "base/true", amount)
        met &= tell(abs(used / allowed - 1) <= 0.05, f"{what}: {used:g}{unit} of the {allowed:g}{unit} allowed,"
                    f" {used / allowed:.3f}", "0.95 to 1.05")
    return met


def main() -> int:
    with home_with_layer():
        met = [replay(), resume(), forks(), calls(), limits()]
    return 0 if all(met) else 1


sys.exit(main())
