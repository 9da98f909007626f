#!/usr/bin/env python3
"""Puts deliberate faults into lockstep/, one at a time, and says which the differential fuzzer finds.

    faults.py BUILD [FIRST [LAST]]    in a tree without changes; faults are numbered from 1
    faults.py --check                 changes and builds nothing: says whether each fault can be applied

Each fault of faults.txt is applied, `differential` is built in BUILD and run with 2, 3, 4 and 1 ranks until a seed
fails, and the file is restored. Lines "<number> <file>: <reason>: found: seed …" go to stdout. Exit code 1 where a fault
is missed that the fuzzer should find, cannot be applied, or does not build.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

SEEDS = {2: 500, 3: 200, 4: 100, 1: 100}
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MISSED, EXPECTED = "MISSED", "missed, as expected: "
NOT_APPLIED, NOT_BUILT = "not applied: the text is not once in the file", "not built"


def read_faults():
    """(file, reason, old text, new text, what finds it where the fuzzer cannot)"""
    blocks = (HERE / "faults.txt").read_text().split("\n\n")[1:]
    for block in blocks:
        place, old, new, *found_by = block.strip().split("\n")
        file, why = place.split(": ", 1)
        yield file, why, old[2:], new[2:], found_by[0][2:] if found_by else ""


def run(ranks, build, *flags):
    command = [build / "bin/lockstep", "run", "--standalone", f"--nproc-per-node={ranks}",
               build / "bin/differential", *flags, f"--seeds=1:{SEEDS[ranks]}", "--until-failure"]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    except subprocess.TimeoutExpired:
        return "a hang"
    if done.returncode == 0:
        return None
    seen = re.search(r"seed \d+ of \d+ ranks.*", done.stdout)
    return seen.group(0)[:160] if seen else f"exit code {done.returncode}"


def can_be_applied(file, old):
    path = ROOT / "lockstep" / file
    return path.is_file() and path.read_text().count(old) == 1


def try_fault(file, old, new, found_by, build):
    if not can_be_applied(file, old):
        return NOT_APPLIED
    path = ROOT / "lockstep" / file
    text = path.read_text()
    try:
        path.write_text(text.replace(old, new))
        built = subprocess.run(["ninja", "-C", build, "differential"], capture_output=True, text=True)
        if built.returncode != 0:
            return NOT_BUILT
        for ranks in SEEDS:
            found = run(ranks, build) or run(ranks, build, "--shards") or run(ranks, build, "--units")
            if found:
                return f"found: {found}"
        return f"{EXPECTED}{found_by}" if found_by else MISSED
    finally:
        path.write_text(text)


def check():
    faults = list(read_faults())
    wrong = [f"{number} {file}: {why}: {NOT_APPLIED}: {old}"
             for number, (file, why, old, _, _) in enumerate(faults, 1) if not can_be_applied(file, old)]
    for line in wrong:
        print(line)
    print(f"{len(faults) - len(wrong)} of {len(faults)} faults can be applied")
    return 1 if wrong or not faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD", nargs="?", type=pathlib.Path, help="as in build/dev")
    parser.add_argument("first", metavar="FIRST", nargs="?", type=int, default=1)
    parser.add_argument("last", metavar="LAST", nargs="?", type=int)
    parser.add_argument("--check", action="store_true", help="say whether each fault can be applied, and no more")
    arguments = parser.parse_args()
    if arguments.check:
        return check()
    if arguments.build is None:
        parser.error("give BUILD, the folder in which lockstep and differential are built, or --check")
    build = arguments.build.resolve()
    for needed in (build / "build.ninja", build / "bin/lockstep"):
        if not needed.exists():
            parser.error(f"there is no {needed}; build lockstep and differential in {arguments.build}, by Ninja")
    faults = list(read_faults())
    last = len(faults) if arguments.last is None else arguments.last
    if not 1 <= arguments.first <= last <= len(faults):
        parser.error(f"faults {arguments.first} to {last}: give numbers from 1 to {len(faults)}")
    status = 0
    for number, (file, why, old, new, found_by) in enumerate(faults, 1):
        if not arguments.first <= number <= last:
            continue
        result = try_fault(file, old, new, found_by, build)
        print(f"{number} {file}: {why}: {result}", flush=True)
        if result in (MISSED, NOT_APPLIED, NOT_BUILT):
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
