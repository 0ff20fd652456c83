# ruff: noqa: T201 - a command: it prints
"""`python -m tests.simulation`: run the simulation for many seeds, or for one."""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

from tests.kit.sketches import HAS_SKETCHES
from tests.simulation.canaries import CANARIES, caught_by
from tests.simulation.canary import SEEDS
from tests.simulation.plan import QUEUES, STEPS, SYSTEMS, Plan
from tests.simulation.run import Outcome, run, smaller

_TRACE_LINES = 60


def main() -> int:
    """Exit status 0 only if every seed held and every canary was caught."""
    asked = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":  # else sets have another order in each process
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    begun = time.monotonic()
    if asked.seed is not None:
        failed = _run_one(Plan.of(asked.seed, asked.steps, asked.system or QUEUES), is_loud=asked.verbose)
    else:
        failed = _run_many(asked)
    if asked.canaries is not None:
        failed += _run_canaries(asked.canaries or list(CANARIES), asked.processes)
    print(f"{'failed' if failed else 'held'} after {time.monotonic() - begun:,.0f} s")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Run whole systems of processes on simulated machines, each from one seed.",
        epilog="Example: python -m tests.simulation --seeds 1000",
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seconds", type=float, help="begin no other seed after so long")
    parser.add_argument("--seed", type=int, help="run just this one")
    parser.add_argument(
        "--system", choices=SYSTEMS, help=f"run this one only (with --seed: {QUEUES}; else all in turn)"
    )
    parser.add_argument("--steps", type=int, help=f"turns with faults in a run ({STEPS} in most systems)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument(
        "--canaries",
        nargs="*",
        metavar="NAME",
        choices=CANARIES,
        help="then run the variants that are broken on purpose: all, or these",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print all that happens, with --seed")
    return parser.parse_args()


def _run_one(plan: Plan, *, is_loud: bool) -> int:
    outcome = run(plan, print if is_loud else lambda line: None)
    print(f"{plan}: {outcome.turns:,} turns, {outcome.seconds:.1f} s simulated, digest {outcome.digest}")
    if outcome.violation:
        _tell(outcome)
    return bool(outcome.violation)


def _run_many(asked: argparse.Namespace) -> int:
    """Run seeds until all have been run or one does not hold."""
    until = math.inf if asked.seconds is None else time.monotonic() + asked.seconds
    systems = (
        [asked.system] if asked.system else [each for each in SYSTEMS if each != "sketches" or HAS_SKETCHES]
    )
    seeds = range(asked.first, asked.first + asked.seeds)
    plans = (Plan.of(seed, asked.steps, system) for seed in seeds for system in systems)
    done = turns = 0
    for outcome in _outcomes(
        itertools.takewhile(lambda plan: time.monotonic() < until, plans), asked.processes
    ):
        done += 1
        turns += outcome.turns
        if outcome.violation:
            _tell(outcome)
            return 1
        if done % 100 == 0 and sys.stderr.isatty():
            print(f"\r{done:,} runs", end="", file=sys.stderr)
    print(f"{done:,} runs of {', '.join(systems)} from seed {asked.first} on, {turns:,} turns: no violation")
    return 0


def _outcomes(plans: Iterator[Plan], processes: int) -> Iterator[Outcome]:
    """Run plans in as many processes, the next one when one is done."""
    with _pool(processes) as pool:
        running = {pool.submit(run, plan) for plan in itertools.islice(plans, 2 * processes)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(run, plan) for plan in itertools.islice(plans, len(done))}
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(cancel_futures=True)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))


def _tell(outcome: Outcome) -> None:
    """Print what is broken, and the smallest run found that shows it."""
    print(f"VIOLATION with {outcome.plan}\n{outcome.violation}\n")
    best = smaller(outcome)
    print(f"smaller, with {best.plan}\n{best.violation}\n")
    print("\n".join(best.lines[-_TRACE_LINES:]))
    print(
        f"\nagain with: python -m tests.simulation --system {outcome.plan.system} --seed {outcome.plan.seed} "
        f"--steps {outcome.plan.steps} -v"
    )


def _run_canaries(names: Sequence[str], processes: int) -> int:
    """Run each canary until it is caught; how many were not."""
    missed = 0
    with _pool(processes) as pool:  # it starts no process before it gets work
        for name, seed in (map if processes == 1 else pool.map)(caught_by, names):
            missed += seed is None
            noted = CANARIES[name].seed
            outdated = (
                "" if seed in {None, noted} else f", not by its seed {noted}: change that, to save time"
            )
            print(
                f"{name}: "
                f"{f'NOT CAUGHT within {SEEDS} seeds' if seed is None else f'caught by seed {seed}{outdated}'}"
            )
    return missed


if __name__ == "__main__":
    sys.exit(main())
