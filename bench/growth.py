#!/usr/bin/env python3
"""How the cost of an all-reduce grows with ranks and size, against the model of docs/performance.md:

    time = time of 4 bytes (waiting alone) + time of the same kernel without waiting

Both are measured in the same run, so that the model knows the machine; "times model" should stay below 2
up to any size and any number of ranks, oversubscribed ones too.

    bench/growth.py --build=build/release --ranks=2,4,8,16,32,64 --json=growth.json
"""
import argparse
import json
import subprocess
import sys

SIZES = [4] + [1024 * 8 ** i for i in range(7)] + [1 << 30]


def available_bytes():
    with open("/proc/meminfo", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def run(arguments, ranks):
    # The program's own estimate is two tensors for each backend and rank and some more.
    largest = 0.7 * available_bytes() / ranks / 5
    sizes = [size for size in SIZES if size <= largest]
    command = [f"{arguments.build}/bin/lockstep", "bench", "all-reduce", f"--nproc-per-node={ranks}",
               f"--backends={arguments.backend}", f"--sizes={','.join(map(str, sizes))}",
               f"--rounds={arguments.rounds}", "--json"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"growth.py: {' '.join(command)} ended with {result.returncode}")
    return json.loads(result.stdout)


def rows_of(report):
    kernel = {(row["bytes"], row["placement"]): row["us"] for row in report["limits"]
              if row["limit"] == "kernel"}
    rows = [row for row in report["rows"] if row["memory"] == "shared"] or report["rows"]
    waiting = {row["placement"]: row["us"] for row in rows if row["bytes"] == 4}
    result = []
    for row in rows:
        key = row["bytes"], row["placement"]
        if key not in kernel or row["placement"] not in waiting:
            continue
        model = waiting[row["placement"]] + kernel[key]
        result.append({"ranks": report["ranks"], "bytes": row["bytes"], "placement": row["placement"],
                       "us": row["us"], "model_us": model, "times_model": row["us"] / model,
                       "ns_per_kb": row["us"] * 1024e3 / row["bytes"]})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="where Lockstep was built")
    parser.add_argument("--backend", default="shm", help="default shm")
    parser.add_argument("--ranks", default="2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default 5)")
    parser.add_argument("--json", help="write all figures to this file")
    arguments = parser.parse_args()
    rows = []
    print(f"{'ranks':>6}{'bytes':>12}  {'placement':10}{'us':>12}{'model':>12}{'times model':>13}")
    for ranks in map(int, arguments.ranks.split(",")):
        for row in rows_of(run(arguments, ranks)):
            rows.append(row)
            print(f"{row['ranks']:6}{row['bytes']:12}  {row['placement']:10}{row['us']:12.4g}"
                  f"{row['model_us']:12.4g}{row['times_model']:13.2f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "growth", "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
