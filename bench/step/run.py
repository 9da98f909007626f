#!/usr/bin/env python3
"""Times whole data-parallel training steps with AdamW, two ranks with one thread each, all ways in turns:
plain LibTorch, Lockstep's replicas, Lockstep's one copy per machine, PyTorch's DistributedDataParallel
over Gloo in Python. A step is zero_grad, forward, backward, the exchange of gradients and AdamW.

    bench/step/run.py --build=build/release --python --json=FILE

"after backward" is the median step without that of "none", forward and backward alone; "step()" is the time
in the optimizer, which with one copy averages the gradients. "limit" is the memory traffic of the update of
one copy, after forward and backward without exchange.
"""
import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def load_ddp_step():
    """The script of the same name beside the program that is timed."""
    spec = importlib.util.spec_from_file_location("ddp_step", HERE.parent / "ddp_step" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ddp_step = load_ddp_step()
Program, STEPS = ddp_step.Program, ddp_step.STEPS

# What a row is called: exchange and optimizer of ddp_step.
WAYS = {
    "none": ("none", "none"),
    "libtorch": ("c10d-gloo", "adamw"),
    "replicas": ("lockstep-shm", "lockstep-adamw"),
    "one-copy": ("onecopy-shm", "lockstep-adamw"),
    "limit": ("barrier-shm", "limit"),
    "pytorch-fused": ("pytorch", "adamw-fused"),
    "pytorch-foreach": ("pytorch", "adamw-foreach"),
}


def measure(arguments, native, python):
    """{(model, way, placement): {"us": [...], "step_us": [...]}}"""
    times = {}
    for turn in range(arguments.rounds):
        for model in arguments.models:
            before = native.ask("distance")["placement"]
            for way in arguments.ways:
                print(f"turn {turn + 1} of {arguments.rounds}: {model}, {way}", file=sys.stderr)
                exchange, optimizer = WAYS[way]
                program = python if exchange == "pytorch" else native
                answer = program.ask(f"{model} {exchange} {optimizer} {STEPS[model]}")
                after = native.ask("distance")["placement"]
                row = times.setdefault((model, way, before if before == after else "mixed"),
                                       {"us": [], "step_us": []})
                for key, values in row.items():
                    values.extend(answer[key])
                before = after
    return times


def rows_of(times):
    rows = []
    for (model, way, placement), values in times.items():
        median = {key: statistics.median(of_key) / 1e3 for key, of_key in values.items()}
        row = {"model": model, "way": way, "placement": placement, "ms": median["us"],
               "step_ms": median["step_us"], "steps": len(values["us"])}
        none = times.get((model, "none", placement))
        if none:
            row["after_backward_ms"] = row["ms"] - statistics.median(none["us"]) / 1e3
        rows.append(row)
    return rows


def table_of(rows):
    lines = [f"{'model':10}{'way':17}{'placement':11}{'ms':>10}{'after backward':>16}{'step()':>10}"]
    for row in rows:
        after = f"{row['after_backward_ms']:.4g}" if "after_backward_ms" in row else "-"
        lines.append(f"{row['model']:10}{row['way']:17}{row['placement']:11}{row['ms']:10.4g}"
                     f"{after:>16}{row['step_ms']:10.4g}")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--build", default="build/release", help="where Lockstep was built")
    parser.add_argument("--ranks", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--models", type=split, default=["mlp", "mingpt", "resnet18", "written"],
                        help=f"of {', '.join(STEPS)}")
    parser.add_argument("--ways", type=split, help=f"of {', '.join(WAYS)}; default: all")
    parser.add_argument("--python", action="store_true",
                        help="PyTorch too; run it by a Python that has torch")
    parser.add_argument("--rounds", type=int, default=5, help="turns (default 5)")
    parser.add_argument("--json", help="write all figures to this file")
    arguments = parser.parse_args()
    if not arguments.ways:
        arguments.ways = [way for way in WAYS if arguments.python or not way.startswith("pytorch")]
    for way in arguments.ways:
        if way not in WAYS:
            parser.error(f"there is no way '{way}'; choose of {', '.join(WAYS)}")
    for model in arguments.models:
        if model not in STEPS:
            parser.error(f"there is no model '{model}'; choose of {', '.join(STEPS)}")
    return arguments


def main():
    arguments = parse_arguments()
    binaries = pathlib.Path(arguments.build).resolve() / "bin"
    launch = [str(binaries / "lockstep"), "run", "--standalone",
              f"--nproc-per-node={arguments.ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable,
                   "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as programs:
        native = Program(folder, "native", [*launch, str(binaries / "ddp_step")], environment)
        programs.callback(native.close)
        python = None
        if any(way.startswith("pytorch") for way in arguments.ways):
            script = str(HERE.parent / "ddp_step" / "pytorch_ddp.py")
            python = Program(folder, "python", [*launch, script], environment)
            programs.callback(python.close)
        rows = rows_of(measure(arguments, native, python))
    print(table_of(rows))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "step", "ranks": arguments.ranks, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
