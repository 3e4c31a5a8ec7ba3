"""What sandboxes do beyond running commands, against what that costs at least:
- a replay of recorded commands that take 10 ms each, against the time of the commands themselves (goal 1.1), and of
  /bin/true, which takes next to nothing, against giving the same commands by hand;
- resume of a paused idle sandbox (goal 3 ms);
- 100 forks of a sandbox with 50 MiB of changes, against the room that the changes take once (goal 1.2: a fork has a few
  small files of its own);
- a function call of /bin/true from a warm pool, against the same in a live sandbox (goal 1.5) and against fork and exec
  by the same process; and how many calls a second a pool stands that is refilled meanwhile (goal 150);
- what a limit lets a sandbox have, against the limit: cores, processor time of a call, memory (goal: within 5 %).
Needs root."""

import statistics
import sys

from support.measuring import BIN, LONG, PAIRS, compare, home_with_layer, number, numbers, tell

OURS = BIN / "bench_living"


def replay() -> bool:
    count = 1000 if LONG else 200
    runs = [numbers(OURS, "replay", "base/true", count) for _ in range(PAIRS)]
    for replayed, own, by_hand in runs:
        print(f"  replay of {count} commands: floor {own:.0f} us, dsec {replayed:.0f} us, by hand {by_hand:.0f} us", flush=True)
    ratio = statistics.median(replayed / own for replayed, own, _ in runs)
    runs_of_true = [numbers(OURS, "replay-true", "base/true", count) for _ in range(PAIRS)]
    of_true = statistics.median(replayed / by_hand for replayed, _, by_hand in runs_of_true)
    print(f"replay of {count} times true: {of_true:.2f} x giving them by hand", flush=True)
    each = statistics.median(own for _, own, _ in runs) / count
    return tell(ratio <= 1.1, f"replay of {count} commands: {ratio:.2f} x the {each:.0f} us of the command itself", "1.10")


def resume() -> bool:
    took = statistics.median(number(OURS, "resume", "base/true", 50) for _ in range(PAIRS)) / 1000
    return tell(took <= 3, f"resume of a paused idle sandbox: {took:.2f} ms", "3 ms")


def forks() -> bool:
    changed, taken, each = numbers(OURS, "forks", "base/true", 100)
    return tell(taken / changed <= 1.2, f"100 forks of {changed:.0f} MiB of changes: {taken:.1f} MiB, {taken / changed:.2f} x one"
                f" copy; {each:.1f} ms each", "1.20")


def calls() -> bool:
    call = lambda: number(OURS, "call", "base/true", 64)
    warm = compare("warm call of true", 1.5, lambda: number(BIN / "bench_sandboxes", "exec", "base/true", 200), call)
    forked = statistics.median(number(BIN / "bench_sandboxes", "fork", "base/true", 200) for _ in range(PAIRS))
    print(f"  fork and exec of true by the same process: {forked:.0f} us", flush=True)
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
