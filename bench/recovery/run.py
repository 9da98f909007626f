#!/usr/bin/env python3
"""Kills random ranks of a job at random moments, again and again, and times how long the job takes
until all ranks have made a step again; torchrun beside it.

    bench/recovery/run.py --binaries=build/release/bin --cycles=200 --json=recovery.json

Subjects: gloo and shm (lockstep run, a small network in C++ over that backend), torchrun (the same in
Python over gloo) and torchrun-own-store (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which its
restarted workers may read the addresses of dead ones). Three kills of four fall into the training, one
into the start of the restarted workers. Without a step by all ranks until the deadline the job counts as
stuck; one that has ended counts as lost. After either a new job is started.
"""
import contextlib
import os
import pathlib
import random
import signal
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launch"))
from jobs import (  # noqa: E402
    PATIENCE_S, Job, find_torchrun, machine, make_parser, percentile, scratch, seconds_now, write_figures)

RANKS = 2
TORCHRUN_CYCLES = 5
# How long after all have stepped, or after the first of the restarted workers runs, a kill falls.
TRAINING_S = 0.1
START_S = 0.3


class Training:
    """The lines of a job: which process is which rank, and who has stepped since the last restart."""

    def __init__(self, pipe):
        self.pipe = pipe
        self.restarts = 0
        self.pids = {}
        self.stepped = {}

    def read(self, deadline_s):
        """Takes note of a line; false when none came."""
        words = self.pipe.read(deadline_s)
        if words is None:
            return False
        restarts, rank, pid, step, instant_ns = map(int, words)
        if restarts > self.restarts:
            self.restarts, self.pids, self.stepped = restarts, {}, {}
        if restarts == self.restarts:
            self.pids[rank] = pid
            if step >= 0:
                self.stepped.setdefault(rank, instant_ns)
        return True

    def go_on_until(self, condition, deadline_s):
        while not condition():
            if not self.read(deadline_s):
                return condition()
        return True

    def all_step(self):
        return len(self.stepped) == RANKS

    def stepping_since_ns(self):
        return max(self.stepped.values())


def run_cycle(training, randomness, deadline_s):
    """Kills one rank. Milliseconds until all step again, or None when they do not."""
    before = training.restarts
    if randomness.random() < 0.25:
        # A first kill brings a start about; the second, which is timed, falls into it.
        os.kill(training.pids[randomness.randrange(RANKS)], signal.SIGKILL)
        started = training.go_on_until(lambda: training.restarts > before,
                                       seconds_now() + deadline_s)
        if not started:
            return None
        before, pause_s = training.restarts, randomness.uniform(0, START_S)
    else:
        pause_s = randomness.uniform(0, TRAINING_S)
    training.go_on_until(lambda: False, seconds_now() + pause_s)
    before = training.restarts
    killed_s = seconds_now()
    # At the very start of the others a rank may not have said its number.
    with contextlib.suppress(ProcessLookupError):
        os.kill(randomness.choice(list(training.pids.values())), signal.SIGKILL)
    if not training.go_on_until(lambda: training.restarts > before and training.all_step(),
                                killed_s + deadline_s):
        return None
    return training.stepping_since_ns() / 1e6 - killed_s * 1e3


def run_subject(name, command, variables, cycles, deadline_s, randomness):
    """{"ms": [...], "stuck": n, "lost": n}"""
    found = {"subject": name, "cycles": cycles, "ms": [], "stuck": 0, "lost": 0, "reports": []}
    left = cycles
    while left > 0:
        with scratch() as (folder, pipe), Job([*command, pipe.path], folder, **variables) as job:
            training = Training(pipe)
            if not training.go_on_until(training.all_step, seconds_now() + PATIENCE_S):
                sys.exit(f"{name}: the job did not start:\n{job.log()}")
            while left > 0:
                if sys.stderr.isatty():
                    print(f"\r\033[K{name}: {left} kills to go", end="", file=sys.stderr, flush=True)
                left -= 1
                took_ms = run_cycle(training, randomness, deadline_s)
                if took_ms is None:
                    found["lost" if job.process.poll() is not None else "stuck"] += 1
                    found["reports"].append(job.log()[-3000:])
                    break
                found["ms"].append(took_ms)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return found


def row_of(found):
    row = {key: found[key] for key in ("subject", "cycles", "stuck", "lost", "reports")}
    row["recovered"] = len(found["ms"])
    if found["ms"]:
        row |= {"ms": statistics.median(found["ms"]), "ms_p99": percentile(found["ms"], 0.99),
                "ms_max": max(found["ms"])}
    return row


def line_of(row):
    figures = "".join(f"{row[key]:10.0f}" if key in row else f"{'-':>10}"
                      for key in ("ms", "ms_p99", "ms_max"))
    return (f"{row['subject']:20}{row['cycles']:7}{row['recovered']:10}{row['stuck']:7}{row['lost']:6}"
            f"{figures}")


def subjects_of(arguments):
    """(name, command, variables, cycles)"""
    binaries = arguments.binaries
    flags = ["--standalone", f"--nproc-per-node={RANKS}"]
    for name in arguments.subjects:
        cycles = arguments.cycles
        if name in ("gloo", "shm"):
            yield (name, [binaries / "lockstep", "run", *flags, f"--max-restarts={2 * cycles}",
                          binaries / "step_worker"], {"LOCKSTEP_BACKEND": name}, cycles)
            continue
        torchrun = find_torchrun(arguments.torchrun)
        if not torchrun:
            continue
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if name != "torchrun" else {}
        cycles = min(cycles, TORCHRUN_CYCLES)
        yield (name, [torchrun, *flags, f"--max-restarts={2 * cycles}",
                      HERE.parent / "launch/step_worker.py"], own_store, cycles)


def main():
    names = ["gloo", "shm", "torchrun", "torchrun-own-store"]
    parser = make_parser(__doc__, "lockstep and step_worker")
    parser.add_argument("--subjects", type=lambda text: text.split(","), default=names)
    parser.add_argument("--cycles", type=int, default=200,
                        help=f"kills of each (default 200; torchrun: at most {TORCHRUN_CYCLES})")
    parser.add_argument("--deadline", type=float, default=20, help="seconds until stuck (default 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--torchrun", help="its path, or none (default: .venv/bin/torchrun or that of PATH)")
    parser.add_argument("--quick", action="store_true", help="4 kills of gloo and shm")
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(names):
        parser.error(f"there is no {unknown.pop()}; choose of {', '.join(names)}")
    if arguments.quick:
        arguments.cycles, arguments.torchrun = 4, "none"
    print(f"seed {arguments.seed}")
    print(f"{'':20}{'kills':>7}{'recovered':>10}{'stuck':>7}{'lost':>6}{'ms':>10}{'p99':>10}{'max':>10}")
    rows, before = [], machine()
    for name, command, variables, cycles in subjects_of(arguments):
        randomness = random.Random(f"{arguments.seed} {name}")
        rows.append(row_of(run_subject(name, command, variables, cycles, arguments.deadline,
                                       randomness)))
        print(line_of(rows[-1]), flush=True)
    write_figures(arguments.json, benchmark="recovery", machine=before, seed=arguments.seed, rows=rows)
    for row in rows:
        if row["subject"] in ("gloo", "shm") and row["recovered"] < row["cycles"]:
            sys.exit(f"{row['subject']}: {row['cycles'] - row['recovered']} of {row['cycles']} kills "
                     f"were not recovered from; the first ended so:\n{row['reports'][0]}")


if __name__ == "__main__":
    main()
