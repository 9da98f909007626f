#!/usr/bin/env python3
"""Times a data-parallel training step, two ranks with one thread each: Lockstep's, PyTorch's and two
processes that do not communicate, in turns, so that all see the same machine. A step is
zero_grad(set_to_none), forward, backward with the exchange of gradients, and SGD.

    bench/ddp_step/run.py --build=build/release --exchanges=lockstep-shm,lockstep-gloo --json=FILE

Exchanges: none, lockstep-<backend>, c10d-<backend> (PyTorch's own c10d::Reducer, in C++), pytorch
(DistributedDataParallel in Python over gloo; run it by a Python that has torch), and, to tell waiting
from exchanging, barrier-<backend> (ranks that wait for each other once a step and exchange nothing).
Models: toy (10-10-5), linear (20-1), mlp (1024-4096-1024-100), mingpt, resnet18, and written (the 45 MB of
gradients of ResNet-18, merely written: "added" is what their exchange takes).
"""
import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Steps of one turn: half a second or so of the slowest exchange.
STEPS = {"toy": 200, "linear": 200, "mlp": 15, "mingpt": 10, "resnet18": 2, "written": 10}


class Program:
    """A pair of ranks that waits for commands on a named pipe."""

    def __init__(self, folder, name, command, environment):
        self.pipes = [os.path.join(folder, f"{name}.{end}") for end in ("commands", "answers")]
        for pipe in self.pipes:
            os.mkfifo(pipe)
        self.process = subprocess.Popen([*command, *self.pipes], env=environment)
        # Opened for both directions, so that a program that fails to start leaves nobody waiting.
        self.commands = open(os.open(self.pipes[0], os.O_RDWR), "w", encoding="utf-8")
        self.answers = open(os.open(self.pipes[1], os.O_RDWR | os.O_NONBLOCK), encoding="utf-8")
        os.set_blocking(self.answers.fileno(), True)

    def ask(self, line):
        print(line, file=self.commands, flush=True)
        while not select.select([self.answers], [], [], 0.5)[0]:
            if self.process.poll() is not None:
                sys.exit(f"run.py: the program ended with {self.process.returncode} at '{line}'")
        return json.loads(self.answers.readline())

    def close(self):
        with contextlib.suppress(OSError):
            print("", file=self.commands, flush=True)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()


def measure(arguments, native, python):
    """{(model, exchange, placement): [µs, ...]}"""
    times = {}
    for turn in range(arguments.rounds):
        for model in arguments.models:
            before = native.ask("distance")["placement"]
            for exchange in arguments.exchanges:
                if sys.stderr.isatty():
                    print(f"\r\033[Kturn {turn + 1} of {arguments.rounds}: {model}, {exchange}",
                          end="", file=sys.stderr, flush=True)
                program = python if exchange == "pytorch" else native
                answer = program.ask(f"{model} {exchange} sgd {STEPS[model]}")
                after = native.ask("distance")["placement"]
                placement = before if before == after else "mixed"
                times.setdefault((model, exchange, placement), []).extend(answer["us"])
                before = after
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return times


def rows_of(times):
    rows = []
    for (model, exchange, placement), values in times.items():
        values.sort()
        row = {"model": model, "exchange": exchange, "placement": placement,
               "ms": statistics.median(values) / 1e3, "ms_min": values[0] / 1e3,
               "ms_p90": values[int(0.9 * (len(values) - 1))] / 1e3, "steps": len(values)}
        none, pytorch = (statistics.median(times.get((model, other, placement), [0])) / 1e3
                         for other in ("none", "pytorch"))
        if none:
            row["ms_added"] = row["ms"] - none
            row["step_over_none"] = row["ms"] / none
        if pytorch:
            row["speedup_over_pytorch"] = pytorch / row["ms"]
        rows.append(row)
    return rows


def table_of(rows):
    lines = [f"{'model':10}{'exchange':16}{'placement':10}{'ms':>10}{'added':>10}{'/ none':>9}{'vs PyTorch':>12}"]
    for row in rows:
        slower = f"{row['step_over_none']:.3f}" if "step_over_none" in row else "-"
        added = f"{row['ms_added']:.4g}" if "ms_added" in row else "-"
        faster = f"{row['speedup_over_pytorch']:.2f}x" if "speedup_over_pytorch" in row else "-"
        lines.append(f"{row['model']:10}{row['exchange']:16}{row['placement']:10}"
                     f"{row['ms']:10.4g}{added:>10}{slower:>9}{faster:>12}")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--build", default="build/release", help="where Lockstep was built")
    parser.add_argument("--models", type=split, default=list(STEPS), help=f"of {', '.join(STEPS)}")
    parser.add_argument("--exchanges", type=split,
                        default=["none", "lockstep-shm", "lockstep-gloo", "c10d-shm", "pytorch"])
    parser.add_argument("--rounds", type=int, default=7, help="turns (default 7)")
    parser.add_argument("--json", help="write all figures to this file")
    arguments = parser.parse_args()
    for model in arguments.models:
        if model not in STEPS:
            parser.error(f"there is no model '{model}'; choose of {', '.join(STEPS)}")
    if "pytorch" in arguments.exchanges and importlib.util.find_spec("torch") is None:
        parser.error(f"{sys.executable} has no torch to time; use .venv/bin/python, or name "
                     "--exchanges without pytorch")
    return arguments


def main():
    arguments = parse_arguments()
    binaries = pathlib.Path(arguments.build).resolve() / "bin"
    launch = [str(binaries / "lockstep"), "run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable,
                   "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as programs:
        native = Program(folder, "native", [*launch, str(binaries / "ddp_step")], environment)
        programs.callback(native.close)
        python = None
        if "pytorch" in arguments.exchanges:
            python = Program(folder, "python", [*launch, str(HERE / "pytorch_ddp.py")], environment)
            programs.callback(python.close)
        rows = rows_of(measure(arguments, native, python))
    print(table_of(rows))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "ddp-step", "ranks": 2, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
