#!/usr/bin/env python3
"""Times asynchronous saves of a model with AdamW, all ways in turns: Lockstep with one copy per machine and with
replicas, and torch.distributed.checkpoint.async_save after DistributedDataParallel over Gloo.

    bench/saves/run.py --build=build/release --python=.venv/bin/python --json=FILE

"stall" is the time in the call that saves, "of CPU" that of its thread on the processor; "first step" and "second
step" what the two steps after it take more than the median step before; "written" until the snapshot is on disk. The
first save of each turn, which allocates memory, is a row of its own. The default is 100 million parameters on two
ranks of one thread.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
WAYS = ("one-copy", "replicas", "pytorch")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="where Lockstep was built")
    parser.add_argument("--python", help="a Python with torch; without it PyTorch is left out")
    parser.add_argument("--folder", help="where snapshots are written (default: the temporary folder)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--saves", type=int, default=3, help="of a turn")
    parser.add_argument("--width", type=int, default=4096, help="of six square layers")
    parser.add_argument("--json", help="write all figures to this file")
    return parser.parse_args()


def turn(arguments, way):
    binaries = pathlib.Path(arguments.build).resolve() / "bin"
    launch = [str(binaries / "lockstep"), "run", "--standalone", f"--nproc-per-node={arguments.ranks}"]
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_", dir=arguments.folder) as folder:
        numbers = [folder, str(arguments.saves), str(arguments.width)]
        program = ([str(HERE / "pytorch_saves.py")] if way == "pytorch" else [str(binaries / "save_stalls"), way])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": arguments.python or sys.executable,
                       "PYTHONWARNINGS": "ignore"}
        done = subprocess.run([*launch, *program, *numbers], env=environment, stdout=subprocess.PIPE, text=True,
                              timeout=1200, check=True)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[{")))


def row_of(way, saves):
    step = statistics.median(ms for save in saves for ms in save["before"])
    return {"way": way, "saves": len(saves), "step_ms": step,
            "stall_ms": statistics.median(save["stall"] for save in saves),
            "stall_cpu_ms": statistics.median(save["stall_cpu"] for save in saves),
            "stall_ms_max": max(save["stall"] for save in saves),
            "first_step_ms": statistics.median(save["after"][0] for save in saves) - step,
            "second_step_ms": statistics.median(save["after"][1] for save in saves) - step,
            "written_ms": statistics.median(save["write"] for save in saves)}


def table_of(rows):
    lines = [f"{'way':18}{'step':>9}{'stall':>9}{'at most':>9}{'of CPU':>9}{'first step':>12}{'second step':>13}"
             f"{'written':>10}  ms"]
    for row in rows:
        lines.append(f"{row['way']:18}{row['step_ms']:9.4g}{row['stall_ms']:9.4g}{row['stall_ms_max']:9.4g}"
                     f"{row['stall_cpu_ms']:9.4g}"
                     f"{row['first_step_ms']:+12.4g}{row['second_step_ms']:+13.4g}{row['written_ms']:10.4g}")
    return "\n".join(lines)


def main():
    arguments = parse_arguments()
    ways = [way for way in WAYS if way != "pytorch" or arguments.python]
    saves = {}
    for _ in range(arguments.rounds):
        for way in ways:
            first, *later = turn(arguments, way)
            saves.setdefault(f"{way}, first", []).append(first)
            if later:
                saves.setdefault(way, []).extend(later)
    rows = [row_of(way, of_way) for way, of_way in saves.items()]
    print(table_of(rows))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "saves", "ranks": arguments.ranks, "width": arguments.width, "rows": rows},
                      file, indent=2)


if __name__ == "__main__":
    main()
