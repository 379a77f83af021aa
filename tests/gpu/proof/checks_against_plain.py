"""What must be as it is without tracing: ends, what CUDA and torch print, captures, cost."""

from __future__ import annotations

from gpu.proof.checks import Check, Said
from gpu.proof.what_is_left import Run

_MEMORY = 100 << 20  # a context on a device is five times as much


def same_end(run: Run, plain: Run | None) -> list[Said]:
    """The exit code of rank 0, which is no good one."""
    a, b = run.codes[0], plain.codes[0] if plain else None
    return [(a == b and a not in (0, None), f"rank 0 ended with {a} (untraced {b})")]


def same_block(run: Run, plain: Run | None) -> list[Said]:
    """Rank 0 stands still, as without tracing."""
    a, b = run.codes[0], plain.codes[0] if plain else 0
    return [(a is b is None, f"rank 0 ended with {a} (untraced {b})")]


def same_words(run: Run, plain: Run | None) -> list[Said]:
    """Torch and CUDA print no more than without, and Python raises the same."""

    def lines(one: Run | None, *words: str) -> int:
        texts = one.stderr if one else []
        return sum(any(w in t for w in words) for text in texts for t in text.splitlines())

    found: list[Said] = []
    for words in (("Failed to update state", "CUDA error"), ("RuntimeError", "AcceleratorError")):
        mine, base = lines(run, *words), lines(plain, *words)
        # What ended the process is said once more, in the last word on it.
        if mine or base:
            words_of = f"{words}: {mine} lines, untraced {base}"
            found.append((0 < base <= mine <= base + 3, words_of))
    return found or [(False, "neither torch nor CUDA said anything")]


def raised(run: Run, plain: Run | None) -> list[Said]:
    a, b = run.fact(0, "raised"), plain.fact(0, "raised") if plain else None
    return [(a is not None and a == b, f"the wait raised {a} (untraced {b})")]


def captures(run: Run, plain: Run | None) -> list[Said]:
    """No capture failed, and nothing was printed."""
    mine = [run.fact(r, "captures_failed") for r in (0, 1)]
    done = [[f["captured"] for f in run.facts[r] if "captured" in f] for r in (0, 1)]
    want = (
        [[f["captured"] for f in plain.facts[r] if "captured" in f] for r in (0, 1)]
        if plain
        else done
    )
    spam = sum(text.count("Failed to update state") for text in run.stderr)
    return [
        (mine == [0, 0], f"captures failed: {mine}"),
        (bool(done[0]) and done == want, f"captured {done[0]}, untraced {want[0]}"),
        (spam == 0, f"{spam} lines «Failed to update state» on stderr"),
    ]


def shares(run: Run, plain: Run | None) -> list[Said]:
    """Whoever synchronises with the device gets a share near one."""
    mine, base = run.fact(0, "shares"), plain.fact(0, "shares") if plain else None
    if not mine or not base:
        return [(False, f"traced {mine}, untraced {base}")]
    a, b = sorted(mine)[len(mine) // 2], sorted(base)[len(base) // 2]
    us, them = run.fact(0, "call_us"), plain.fact(0, "call_us") if plain else None
    issued = run.fact(0, "issued_ms")
    return [
        (b < 0.3, f"untraced share of the device's time {b:.4f} (small, else this shows nothing)"),
        (a < b + 0.05, f"traced {a:.4f}: 40 calls behind 2 s of kernel issued in {issued} ms"),
        (None, f"a call costs {us} us traced, {them} us untraced"),
    ]


def costs(share: float, stop_ms: float, *, judged: bool = True) -> Check:
    """What tracing adds, of one core and to the longest stop of another Python thread."""

    def check(run: Run, plain: Run | None) -> list[Said]:
        mine, base = (r.fact(0, "cpu_share") if r else None for r in (run, plain))
        stop, before = (r.fact(0, "longest_stop_ms") if r else None for r in (run, plain))
        if mine is None or base is None or stop is None or before is None:
            return [(False, f"traced {mine}, untraced {base}")]
        words = f"share of a core {mine:.4f}, untraced {base:.4f}"
        stops = f"longest stop {stop:.1f} ms, untraced {before:.1f}"
        return [
            (mine < base + share if judged else None, words),
            (stop < before + stop_ms if judged else None, stops),
        ]

    return check


def gpu_0_memory(run: Run, plain: Run | None) -> list[Said]:
    """Nobody made a context on a device that is not its own."""
    used = [run.fact(r, "gpu_0_used") for r in range(len(run.facts))]
    good = bool(used) and all(u is not None and u[1] - u[0] < _MEMORY for u in used)
    return [(good, f"memory of GPU 0 before and after, by rank: {used}")]
