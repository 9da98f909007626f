#!/usr/bin/env python3
"""Makes up resilient programs and what happens to their processes, and compares each job with the same job left alone.

    recovery.py LOCKSTEP RECOVERY_WORKER --seeds=FIRST:COUNT [--jobs=2]
    recovery.py LOCKSTEP RECOVERY_WORKER --seed=N          one, with its output

A seed draws the program (drawn_training.cpp), the number of ranks, the backend and, from what the undisturbed job
passes, the faults (faults.py): processes killed or stopped at failpoints, also in new_group, construction and
evaluation, replacements and survivors that recover, or at random instants; calls of the system that fail; second
machines that join and leave. What must hold, whatever was drawn:

  the job ends with exit code 0, and the bits of all ranks are those of the undisturbed job; only where all that had
  the state ended before its first copy was in memory, it ends with an error that says how many steps are lost;
  no process makes a step again that it had made; only where ranks failed after the update of a step, and no process
  with a whole state is left, they go on from the last copy in memory;
  the job is never silent for more than 30 s; any line of the launcher or a process ends a silence.

A seed that fails is made smaller: faults are left out while it still fails.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import os
import random
import re
import subprocess
import sys
import time

import faults as drawn_faults
from recovery_job import JOB_S, Case, run_job

# The job as a whole: longer than any of its deadlines, the launcher's verdict on who hangs, and a busy machine.
SILENCE_S = 30


def draw_case(seed):
    """Without faults yet."""
    dice = random.Random(f"case {seed}")
    ranks = dice.choice([0, 1, 2, 2, 2, 2, 3, 3, 3, 4])
    return Case(seed, ranks, dice.choice(["shm", "shm", "gloo"]) if ranks else "gloo", [])


def memory_every(outcome):
    drawn = next(text for _, text in outcome.lines if text.startswith("starts: "))
    return int(re.search(r"in memory every (\d+)", drawn)[1]), "evaluated every" in drawn


def is_lost_before_a_copy(outcome):
    lost = re.search(r"the state after (\d+) steps or more is lost", outcome.errors)
    return outcome.code == 1 and lost is not None and int(lost[1]) <= memory_every(outcome)[0]


def steps_made_again(outcome):
    """What is wrong about the steps from which processes went on; empty if nothing is. Lines of several processes may
    be seen in another order than they were written in, those of one are not."""
    every, evaluates = memory_every(outcome)
    # A rank that fails after the update of a step has no whole state, and the last copy may be all there is.
    allowed = every if evaluates else 0
    made = {}
    for pid, text in outcome.lines:
        if text.startswith("made "):
            made[pid] = int(text.split()[1])
        elif " begins at " in text and pid in made:
            begins = int(text.split()[-1])
            if begins < made[pid] + 1 - allowed:
                return f"process {pid} made step {made[pid]} and goes on from step {begins}"
    return ""


def problem_of(outcome, undisturbed):
    if outcome.is_stuck:
        return f"not over after {JOB_S} s"
    if is_lost_before_a_copy(outcome):
        return ""
    if outcome.code != 0:
        return f"exit code {outcome.code}"
    if outcome.ends() != undisturbed:
        return f"other bits: {outcome.ends()} instead of {undisturbed}"
    if outcome.silence_s > SILENCE_S:
        return f"nothing was said for {outcome.silence_s:.0f} s"
    return steps_made_again(outcome)


def run_undisturbed(programs, case):
    outcome = run_job(programs, case)
    if outcome.code != 0 or len(outcome.ends()) != 1:
        raise RuntimeError(f"{case}: the undisturbed job has failed:\n{outcome.errors}")
    return outcome


def shrink(programs, case, undisturbed):
    """Without the faults that it fails without. A fault at an instant may miss: each is tried three times."""
    smaller = True
    while smaller and len(case.faults) > 1:
        smaller = False
        for left_out in case.faults:
            candidate = dataclasses.replace(case, faults=[fault for fault in case.faults if fault is not left_out])
            if any(problem_of(run_job(programs, candidate), undisturbed) for _ in range(3)):
                case, smaller = candidate, True
                break
    return case


def try_seed(programs, seed):
    """(case, what is wrong or nothing, the outcome, how the undisturbed job ends)"""
    case = draw_case(seed)
    undisturbed = run_undisturbed(programs, case)
    case.faults = drawn_faults.draw(seed, drawn_faults.Places(undisturbed.lines), case.ranks)
    outcome = run_job(programs, case)
    return case, problem_of(outcome, undisturbed.ends()), outcome, undisturbed.ends()


class Tally:
    """How many faults were drawn and have happened, by phase."""

    def __init__(self):
        self.drawn = collections.Counter()
        self.happened = collections.Counter()

    def add(self, case, outcome):
        for fault in case.faults:
            self.drawn[fault.phase] += 1
            self.happened[fault.phase] += bool(fault.happened(outcome.errors))

    def __str__(self):
        phases = ", ".join(f"{phase} {self.happened[phase]} of {drawn}" for phase, drawn in sorted(self.drawn.items()))
        return f"{self.happened.total()} of {self.drawn.total()} faults happened ({phases})"


def has_failpoints(lockstep):
    return subprocess.run([lockstep, "env"], env=os.environ | {"LOCKSTEP_FAILPOINT": "list"}, capture_output=True,
                          check=False).returncode != 0


def seeds_of(text):
    """The seeds of FIRST:COUNT."""
    match = re.fullmatch(r"(\d+):([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}': give the first seed and how many, as in 0:20")
    first, count = map(int, match.groups())
    return range(first, first + count)


def seed_of(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}': give an integer from 0")
    return int(text)


def job_count_of(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': give an integer from 1")
    return int(text)


def program_of(text):
    if not os.path.isfile(text) or not os.access(text, os.X_OK):
        raise argparse.ArgumentTypeError(f"there is no program {text}; build it, or give another path")
    return os.path.abspath(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=program_of)
    parser.add_argument("worker", type=program_of)
    parser.add_argument("--seeds", type=seeds_of, default="0:20", help="the first and how many (default: %(default)s)")
    parser.add_argument("--seed", type=seed_of, help="this one, with what the job writes")
    parser.add_argument("--jobs", type=job_count_of, default=2, help="how many at once (default: %(default)s)")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="each seed's case, and which of its faults did not happen")
    arguments = parser.parse_args()
    programs = (arguments.lockstep, arguments.worker)
    if not has_failpoints(arguments.lockstep):
        parser.error("this lockstep has no failpoints; build it with LOCKSTEP_FAILPOINTS, as the preset dev does")
    seeds = arguments.seeds if arguments.seed is None else [arguments.seed]
    begin_s, failed, tally = time.monotonic(), [], Tally()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for number, (case, problem, outcome, undisturbed) in enumerate(
                pool.map(lambda seed: try_seed(programs, seed), seeds), 1):
            tally.add(case, outcome)
            if problem:
                failed.append(case.seed)
                print(f"FAILED {case}\n  {problem}\n{outcome.errors}", flush=True)
                if not arguments.no_shrink:
                    print(f"  smaller: {shrink(programs, case, undisturbed)}", flush=True)
            if arguments.verbose:
                missed = [str(fault) for fault in case.faults if not fault.happened(outcome.errors)]
                print(case, f"   did not happen: {'; '.join(missed)}" if missed else "", flush=True)
            if arguments.seed is not None and not problem:
                print(case, outcome.errors, *(f"{pid} {text}" for pid, text in outcome.lines), sep="\n")
            if sys.stderr.isatty() or number % 50 == 0:
                print(f"{number} of {len(seeds)} seeds, {len(failed)} failed, {time.monotonic() - begin_s:.0f} s",
                      file=sys.stderr, flush=True)
    print(f"{len(seeds) - len(failed)} passed, {len(failed)} failed in {time.monotonic() - begin_s:.0f} s, {tally}"
          + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
