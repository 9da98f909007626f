#!/usr/bin/env python3
"""Times calls to another worker on this machine and back, Lockstep's and torch.distributed.rpc's, in
turns. Each turn is a job of its own: idle workers of either may take processor time. The same tensor
goes and comes back; a call of 0 bytes has no argument.

    bench/rpc/run.py --build=build/release --rounds=7 --json=FILE
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# Calls a turn, by bytes.
CALLS = {0: 2000, 1 << 10: 2000, 1 << 20: 200, 64 << 20: 8}


def run_job(arguments, program):
    plans = [f"{size}:{calls}" for size, calls in CALLS.items()]
    command = [f"{arguments.build}/bin/lockstep", "run", "--standalone", "--nproc-per-node=2",
               *program, *plans]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        sys.exit(f"run.py: {program[0]} ended with {done.returncode}:\n{done.stderr}")
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return {int(size): times for size, times in json.loads(line).items()}


def measure(arguments):
    programs = {"lockstep": [f"{arguments.build}/bin/rpc_calls"],
                "pytorch": [sys.executable, str(HERE / "pytorch_rpc.py")]}
    times = {}
    for turn in range(arguments.rounds):
        for name, program in programs.items():
            if sys.stderr.isatty():
                print(f"\r\033[Kturn {turn + 1} of {arguments.rounds}: {name}", end="",
                      file=sys.stderr, flush=True)
            for size, values in run_job(arguments, program).items():
                times.setdefault(size, {}).setdefault(name, []).append(statistics.median(values))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return times


def rows_of(times):
    rows = []
    for size, by_name in times.items():
        row = {"bytes": size}
        for name, medians in by_name.items():
            row[f"{name}_us"] = statistics.median(medians)
            row[f"{name}_gb_s"] = 2 * size / row[f"{name}_us"] / 1e3
        row["times_as_fast"] = statistics.median(
            theirs / ours for theirs, ours in zip(by_name["pytorch"], by_name["lockstep"]))
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="where Lockstep was built")
    parser.add_argument("--rounds", type=int, default=7, help="turns (default 7)")
    parser.add_argument("--json", help="write all figures to this file")
    arguments = parser.parse_args()
    rows = rows_of(measure(arguments))
    print(f"{'bytes':>10}{'us':>10}{'GB/s':>8}{'PyTorch us':>12}{'GB/s':>8}{'as fast':>9}")
    for row in rows:
        print(f"{row['bytes']:10}{row['lockstep_us']:10.0f}{row['lockstep_gb_s']:8.2f}"
              f"{row['pytorch_us']:12.0f}{row['pytorch_gb_s']:8.2f}{row['times_as_fast']:8.1f}x")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
