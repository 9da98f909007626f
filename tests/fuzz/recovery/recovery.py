#!/usr/bin/env python3
"""Makes up programs and what happens to their processes, and compares each job with the same job left alone.

    recovery.py BINARIES --seeds=FIRST:COUNT,... [--jobs=2]
    recovery.py BINARIES --seed=N          one, with its output
    recovery.py BINARIES --case=TEXT       one that has failed, with the same faults: a failure prints the text

BINARIES: the folder with lockstep, accelerator_worker and recovery_worker, as build/dev/bin. A seed draws the loop, the
number of ranks, the backend and the options (programs.py), and, from what the undisturbed job passes, the faults
(faults.py): processes killed or stopped at failpoints, also in new_group, construction, evaluation and saves,
replacements and survivors that recover; signals at random instants, to two ranks at once too; exceptions; calls of the
system that fail; other numbers of ranks; second machines that join and leave. What must hold, whatever was drawn
(checks.py):

  the job ends with exit code 0, and the bits of all ranks are those of the undisturbed job; only where all that had
  the state of a ResilientTraining ended before its first copy was in memory, it ends with an error that says how many
  steps are lost;
  each step has the bits of the undisturbed job's, and no process makes one again that it had made;
  evaluations, lines that the job prints once and metrics are there once, and `lockstep audit` finds each sample once;
  no process and no temporary file is left;
  the job is never silent for more than 30 s; any line of the launcher or a process ends a silence.

A seed that fails is made smaller: faults are left out while it still fails. Where threads write in the background, how
often a rank passes a failpoint differs from run to run, and so do the faults of a seed: --case names them.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time

import faults as drawn_faults
from checks import problem_of
from programs import LOOPS, draw_case
from recovery_job import STARTS_WITHIN_S, run_job


def run_undisturbed(binaries, case):
    case = dataclasses.replace(case, faults=[], pace=10)
    outcome = run_job(binaries, case)
    if problem := problem_of(case, outcome, outcome):
        raise RuntimeError(f"{case}: the undisturbed job has failed: {problem}\n{outcome.errors}")
    if not case.other_ranks:
        return outcome
    other = dataclasses.replace(case, ranks=case.other_ranks, other_ranks=0)
    if problem := problem_of(other, run_job(binaries, other), outcome):
        raise RuntimeError(f"{case}: on {case.other_ranks} ranks: {problem}")
    return outcome


def shrink(binaries, case, undisturbed):
    """Without the faults that it fails without. A fault at an instant may miss: each is tried three times."""
    smaller = True
    while smaller and len(case.faults) > 1:
        smaller = False
        for left_out in case.faults:
            candidate = dataclasses.replace(case, faults=[fault for fault in case.faults if fault is not left_out])
            if any(problem_of(candidate, run_job(binaries, candidate), undisturbed) for _ in range(3)):
                case, smaller = candidate, True
                break
    return case


def text_of(case):
    return json.dumps({"seed": case.seed, "faults": [[type(fault).__name__, dataclasses.asdict(fault)]
                                                     for fault in case.faults]})


def faults_of(text):
    return [getattr(drawn_faults, kind)(**{name: tuple(value) if isinstance(value, list) else value
                                           for name, value in fields.items()})
            for kind, fields in json.loads(text)["faults"]]


def try_seed(binaries, seed, loops, text=None):
    """(case, what is wrong or nothing, the outcome, the undisturbed one); nothing where the seed draws another loop."""
    case = draw_case(seed)
    if case.loop not in loops:
        return None
    undisturbed = run_undisturbed(binaries, case)
    case.pace = math.ceil(undisturbed.started_s / STARTS_WITHIN_S)
    case.faults = faults_of(text) if text else drawn_faults.draw(case, drawn_faults.Places(undisturbed.lines))
    outcome = run_job(binaries, case)
    return case, problem_of(case, outcome, undisturbed), outcome, undisturbed


class Tally:
    """How many seeds each loop has had, and how many faults were drawn and have happened, by phase."""

    def __init__(self):
        self.loops = collections.Counter()
        self.drawn = collections.Counter()
        self.happened = collections.Counter()

    def add(self, case, outcome):
        self.loops[case.loop] += 1
        for fault in case.faults:
            self.drawn[fault.phase] += 1
            self.happened[fault.phase] += bool(fault.happened(outcome.errors))

    def __str__(self):
        phases = ", ".join(f"{phase} {self.happened[phase]} of {drawn}" for phase, drawn in sorted(self.drawn.items()))
        loops = ", ".join(f"{loop} {count}" for loop, count in sorted(self.loops.items()))
        return f"{self.happened.total()} of {self.drawn.total()} faults happened ({phases}); loops: {loops}"


def has_failpoints(lockstep):
    return subprocess.run([lockstep, "env"], env=os.environ | {"LOCKSTEP_FAILPOINT": "list"}, capture_output=True,
                          check=False).returncode != 0


def seeds_of(text):
    """The seeds of FIRST:COUNT,..."""
    if not re.fullmatch(r"\d+:[1-9]\d*(,\d+:[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"'{text}': give the first seed and how many, as in 0:20 or 0:20,41:1")
    ranges = (map(int, part.split(":")) for part in text.split(","))
    return [seed for first, count in ranges for seed in range(first, first + count)]


def seed_of(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}': give an integer from 0")
    return int(text)


def job_count_of(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': give an integer from 1")
    return int(text)


def binaries_of(text):
    for name in ("lockstep", "accelerator_worker", "recovery_worker"):
        path = os.path.join(text, name)
        if not os.path.isfile(path) or not os.access(path, os.X_OK):
            raise argparse.ArgumentTypeError(f"there is no program {path}; build it, or give another folder")
    return os.path.abspath(text)


def loops_of(text):
    loops = text.split(",")
    if unknown := set(loops) - set(LOOPS):
        raise argparse.ArgumentTypeError(f"there is no loop {unknown.pop()}; choose of {', '.join(LOOPS)}")
    return loops


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=binaries_of)
    parser.add_argument("--seeds", type=seeds_of, default="0:20", help="the first and how many (default: %(default)s)")
    parser.add_argument("--seed", type=seed_of, help="this one, with what the job writes")
    parser.add_argument("--case", help="this one")
    parser.add_argument("--loops", type=loops_of, default=list(LOOPS), help="only seeds that draw one of these")
    parser.add_argument("--jobs", type=job_count_of, default=2, help="how many at once (default: %(default)s)")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="each seed's case, and which of its faults did not happen")
    arguments = parser.parse_args()
    binaries = arguments.binaries
    if not has_failpoints(os.path.join(binaries, "lockstep")):
        parser.error("this lockstep has no failpoints; build it with LOCKSTEP_FAILPOINTS, as the preset dev does")
    if arguments.case:
        arguments.seed = json.loads(arguments.case)["seed"]
    seeds = arguments.seeds if arguments.seed is None else [arguments.seed]
    begin_s, failed, tally = time.monotonic(), [], Tally()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        tried = pool.map(lambda seed: try_seed(binaries, seed, arguments.loops, arguments.case), seeds)
        for number, (case, problem, outcome, undisturbed) in enumerate(filter(None, tried), 1):
            tally.add(case, outcome)
            if problem:
                failed.append(case.seed)
                print(f"FAILED {case}\n  {problem}\n{outcome.errors}", flush=True)
                if not arguments.no_shrink and not arguments.case:
                    case = shrink(binaries, case, undisturbed)
                    print(f"  smaller: {case}")
                print(f"  again: {sys.argv[0]} {binaries} --case={shlex.quote(text_of(case))}", flush=True)
            if arguments.verbose:
                missed = [str(fault) for fault in case.faults if not fault.happened(outcome.errors)]
                print(case, f"   did not happen: {'; '.join(missed)}" if missed else "", flush=True)
            if arguments.seed is not None and not problem:
                print(case, outcome.errors, *(f"{pid} {text}" for pid, text in outcome.lines), sep="\n")
            if sys.stderr.isatty() or number % 50 == 0:
                print(f"{number} of {len(seeds)} seeds, {len(failed)} failed, {time.monotonic() - begin_s:.0f} s",
                      file=sys.stderr, flush=True)
    print(f"{tally.loops.total() - len(failed)} passed, {len(failed)} failed in {time.monotonic() - begin_s:.0f} s, {tally}"
          + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
