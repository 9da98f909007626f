#!/usr/bin/env python3
"""What ResilientTraining costs while nothing fails: a step in its loop against the same step in a plain one. Both run
in the same processes, by turns of 20 steps, so that they see the same machine; medians over the turns. On a busy
machine the least of all turns, which nobody disturbed, say more, and of a single rank (--ranks=1), which waits for
nobody, the most.

    bench/recovery/cost.py --binaries=build/release/bin --json=cost.json

Subjects: the loop alone, with Adam; with a copy of the state in memory every 100 steps; with a folder for snapshots,
so that the ranks ask each other before each step whether one was preempted; with SGD, with
momentum and without, where the parameters are hashed. Networks of 0.1 and 10 million parameters, over shm. The jobs of a network run by turns, too.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launch"))
from jobs import machine, make_parser, write_figures  # noqa: E402

JOB_TIMEOUT_S = 600
# Width of the network, turns of a job, and steps of a turn.
NETWORKS = {"0.1 million": (256, 100, 20), "10 million": (3100, 5, 20)}
# Optimizer, whether the state is copied into memory, once a turn, and whether there is a folder.
SUBJECTS = {"Adam": ("adam", False, False), "copy in memory": ("adam", True, False), "snapshots": ("adam", False, True),
            "SGD, momentum": ("momentum", False, False), "SGD": ("sgd", False, False)}
MEMORY_EVERY = 100


def run_command(arguments, what, program, *words):
    """The figures that rank 0 of a job of this program prints."""
    command = [arguments.binaries / "lockstep", "run", "--standalone", f"--nproc-per-node={arguments.ranks}",
               "--max-restarts=3", arguments.binaries / program, *words]
    environment = os.environ | {"LOCKSTEP_BACKEND": "shm", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=environment, timeout=JOB_TIMEOUT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{what}: the job ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def run_job(arguments, network, subject, folder):
    """[(ms of a plain step, ms of one of ResilientTraining)] of each turn."""
    width, turns, steps = NETWORKS[network]
    optimizer, with_copy, with_folder = SUBJECTS[subject]
    figures = run_command(arguments, f"{subject}, {network}", "cost_worker", optimizer, width, turns, steps,
                          steps * with_copy, *([folder] if with_folder else []))
    return list(zip(figures["plain_ms"], figures["resilient_ms"]))


def row_of_turns(turns):
    """Of [(time of a plain step, time of the other)]: medians, and the least of all turns."""
    least_plain, least = map(min, zip(*turns))
    return {"turns": len(turns), "plain": statistics.median(plain for plain, _ in turns),
            "adds": statistics.median(other - plain for plain, other in turns),
            "cost": statistics.median(other / plain for plain, other in turns) - 1,
            "least_plain": least_plain, "least_adds": least - least_plain, "least_cost": least / least_plain - 1}


def row_of(network, subject, turns):
    # As it would be with a copy every so many steps.
    share = NETWORKS[network][2] / MEMORY_EVERY if SUBJECTS[subject][1] else 1
    row = row_of_turns(turns)
    return {"network": network, "subject": subject, "turns": row["turns"], "plain_ms": row["plain"],
            "cost_us": 1e3 * share * row["adds"], "cost": share * row["cost"],
            "least_plain_ms": row["least_plain"], "least_cost_us": 1e3 * share * row["least_adds"],
            "least_cost": share * row["least_cost"]}


def main():
    parser = make_parser(__doc__, "lockstep and cost_worker")
    parser.add_argument("--networks", type=lambda text: text.split(","), default=list(NETWORKS))
    parser.add_argument("--ranks", type=int, default=2, help="of the jobs (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each (default 5)")
    parser.add_argument("--quick", action="store_true", help="one job each of the small network")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.networks, arguments.rounds = ["0.1 million"], 1
    rows, before = [], machine()
    print(f"{'parameters':14}{'':18}{'turns':>6}{'plain, ms':>11}{'us':>9}{'cost':>9}"
          f"{'least, ms':>11}{'us':>9}{'cost':>9}")
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        for network in arguments.networks:
            turns = {subject: [] for subject in SUBJECTS}
            for number in range(arguments.rounds):
                for subject, found in turns.items():
                    if sys.stderr.isatty():
                        print(f"\r\033[K{network}, {subject}: {number + 1} of {arguments.rounds}", end="",
                              file=sys.stderr, flush=True)
                    found += run_job(arguments, network, subject, folder)
            print("\r\033[K" * sys.stderr.isatty(), end="", file=sys.stderr)
            for subject, found in turns.items():
                rows.append(row_of(network, subject, found))
                row = rows[-1]
                print(f"{network:14}{subject:18}{row['turns']:6}{row['plain_ms']:11.3f}{row['cost_us']:9.1f}"
                      f"{row['cost']:9.2%}{row['least_plain_ms']:11.3f}{row['least_cost_us']:9.1f}"
                      f"{row['least_cost']:9.2%}", flush=True)
    write_figures(arguments.json, benchmark="cost without faults", machine=before, rows=rows)


if __name__ == "__main__":
    main()
