#!/usr/bin/env python3
"""Makes up resilient programs and what happens to their processes, and compares each job with the same job left alone.

    recovery.py LOCKSTEP RECOVERY_WORKER --seeds=FIRST:COUNT [--jobs=2]
    recovery.py LOCKSTEP RECOVERY_WORKER --seed=N          one, with its output

A seed draws the program (drawn_training.cpp), the number of ranks, the backend and the faults (faults.py): processes
killed or stopped at failpoints, also replacements and survivors that recover, or at random instants; calls of the
system that fail; a second machine that joins and leaves. What must hold, whatever was drawn:

  the job ends with exit code 0, and the bits of all ranks are those of the undisturbed job; only where all that had
  the state ended before its first copy was in memory, it ends with an error that says how many steps are lost;
  no process makes a step again that it had made; only where ranks failed after the update of a step, and no process
  with a whole state is left, they go on from the last copy in memory;
  the job never says nothing for longer than its deadlines.

A seed that fails is made smaller: faults are left out while it still fails.
"""

import argparse
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

# Longer than any of its deadlines, the launcher's verdict on who hangs, and a busy machine.
SILENCE_S = 30


def draw_case(seed, names):
    dice = random.Random(f"case {seed}")
    ranks = dice.choice([0, 1, 2, 2, 2, 2, 3, 3, 3, 4])
    backend = dice.choice(["shm", "shm", "gloo"]) if ranks else "gloo"
    return Case(seed, ranks, backend, drawn_faults.draw(seed, names, ranks))


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


def undisturbed_ends(programs, case):
    outcome = run_job(programs, dataclasses.replace(case, faults=[]))
    if outcome.code != 0 or len(outcome.ends()) != 1:
        raise RuntimeError(f"{case}: the undisturbed job has failed:\n{outcome.errors}")
    return outcome.ends()


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


def try_seed(programs, names, seed):
    """(case, what is wrong or nothing, the outcome)"""
    case = draw_case(seed, names)
    undisturbed = undisturbed_ends(programs, case)
    outcome = run_job(programs, case)
    return case, problem_of(outcome, undisturbed), outcome, undisturbed


def failpoints(lockstep):
    """The names of all that are compiled in."""
    said = subprocess.run([lockstep, "env"], env=os.environ | {"LOCKSTEP_FAILPOINT": "list"}, capture_output=True,
                          text=True, check=False)
    if said.returncode == 0:
        sys.exit("recovery.py: no failpoints in this build (LOCKSTEP_FAILPOINTS)")
    return re.search("the names: (.*)", said.stderr)[1].split(", ")


def seeds_of(arguments):
    if arguments.seed is not None:
        return [arguments.seed]
    first, count = map(int, arguments.seeds.split(":"))
    return range(first, first + count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=os.path.abspath)
    parser.add_argument("worker", type=os.path.abspath)
    parser.add_argument("--seeds", default="0:20", help="the first and how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="this one, with what the job writes")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default: %(default)s)")
    parser.add_argument("--no-shrink", action="store_true")
    arguments = parser.parse_args()
    programs = (arguments.lockstep, arguments.worker)
    names = failpoints(arguments.lockstep)
    seeds = seeds_of(arguments)
    begin_s, failed, faults, effects = time.monotonic(), [], 0, 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for number, (case, problem, outcome, undisturbed) in enumerate(
                pool.map(lambda seed: try_seed(programs, names, seed), seeds), 1):
            faults += len(case.faults)
            effects += outcome.effects
            if problem:
                failed.append(case.seed)
                print(f"FAILED {case}\n  {problem}\n{outcome.errors}", flush=True)
                if not arguments.no_shrink:
                    print(f"  smaller: {shrink(programs, case, undisturbed)}", flush=True)
            elif arguments.seed is not None:
                print(case, outcome.errors, *(f"{pid} {text}" for pid, text in outcome.lines), sep="\n")
            if sys.stderr.isatty() or number % 50 == 0:
                print(f"{number} of {len(seeds)} seeds, {len(failed)} failed, {time.monotonic() - begin_s:.0f} s",
                      file=sys.stderr, flush=True)
    print(f"{len(seeds) - len(failed)} passed, {len(failed)} failed in {time.monotonic() - begin_s:.0f} s, {effects} of {faults} faults "
          "happened" + (f": seeds {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
