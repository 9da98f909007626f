#!/usr/bin/env python3
"""Puts deliberate faults into lockstep/, one at a time, and says which the differential fuzzer finds.

usage: faults.py BUILD [FIRST [LAST]]    from the root of a tree without changes; faults are numbered from 1

Each fault of faults.txt is applied, `differential` is built in BUILD and run with 2, 3, 4 and 1 ranks until a seed
fails, and the file is restored. What does not build is no fault. Lines "<number> found by seed …" go to stdout.
"""

import os
import pathlib
import re
import subprocess
import sys

SEEDS = {2: 500, 3: 200, 4: 100, 1: 100}
HERE = pathlib.Path(__file__).parent


def read_faults():
    blocks = (HERE / "faults.txt").read_text().split("\n\n")[1:]
    for block in blocks:
        place, old, new = block.strip().split("\n")
        file, why = place.split(": ", 1)
        yield file, why, old[2:], new[2:]


def run(ranks, build):
    command = [build / "bin/lockstep", "run", "--standalone", f"--nproc-per-node={ranks}",
               build / "bin/differential", f"--seeds=1:{SEEDS[ranks]}", "--until-failure"]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    except subprocess.TimeoutExpired:
        return "a hang"
    if done.returncode == 0:
        return None
    seen = re.search(r"seed \d+ of \d+ ranks.*", done.stdout)
    return seen.group(0)[:160] if seen else f"exit code {done.returncode}"


def try_fault(file, old, new, build):
    path = pathlib.Path("lockstep") / file
    text = path.read_text()
    if text.count(old) != 1:
        return "not applied: the text is not there once"
    try:
        path.write_text(text.replace(old, new))
        built = subprocess.run(["ninja", "-C", build, "differential"], capture_output=True, text=True)
        if built.returncode != 0:
            return "not built"
        for ranks in SEEDS:
            found = run(ranks, build)
            if found:
                return f"found: {found}"
        return "MISSED"
    finally:
        path.write_text(text)


def main():
    build = pathlib.Path(sys.argv[1])
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    last = int(sys.argv[3]) if len(sys.argv) > 3 else 10**6
    for number, (file, why, old, new) in enumerate(read_faults(), 1):
        if first <= number <= last:
            print(f"{number} {file}: {why}: {try_fault(file, old, new, build)}", flush=True)


if __name__ == "__main__":
    main()
