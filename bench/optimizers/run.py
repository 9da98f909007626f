#!/usr/bin/env python3
"""Times one step of optimizers on the 8.5 million float32 parameters of the MLP 1024-4096-1024-100: LibTorch's, Lockstep's,
PyTorch's fused and foreach, and the limit, a program that does the step's memory traffic and no arithmetic. In turns, so
that all see the same machine; medians over all turns.

    bench/optimizers/run.py --build=build/release [--optimizers=adamw,sgd,lion] [--threads=1] [--rounds=7] [--json=FILE]

Run it by a Python that has torch.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FUSED = {"adamw", "sgd", "adagrad"}
OF_LIBTORCH = {"adamw", "sgd", "adagrad", "rmsprop"}
OF_PYTORCH = OF_LIBTORCH | {"nadam", "radam", "adamax", "adadelta"}


class Program:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, subject, steps):
        print(subject, steps, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"run.py: the program ended with {self.process.wait()} at '{subject}'")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


def subjects_of(optimizer):
    if optimizer in OF_LIBTORCH:
        yield "cpp", f"torch-{optimizer}"
    if optimizer in OF_PYTORCH:
        yield "python", f"pytorch-foreach-{optimizer}"
    if optimizer in FUSED:
        yield "python", f"pytorch-fused-{optimizer}"
    yield "cpp", f"lockstep-{optimizer}"
    yield "cpp", f"limit-{optimizer}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--optimizers", default="adamw,sgd,lion")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="of each subject in a round")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = threads = str(arguments.threads)
    programs = {"cpp": Program([arguments.build / "bin/optimizer_steps", threads]),
                "python": Program([sys.executable, HERE / "pytorch_optimizers.py", threads])}
    times = {subject: [] for optimizer in arguments.optimizers.split(",") for subject in subjects_of(optimizer)}
    for _ in range(arguments.rounds):
        for (language, subject), measured in times.items():
            measured += programs[language].ask(subject, arguments.steps)
    for program in programs.values():
        program.close()

    medians = {subject: statistics.median(measured) for (_, subject), measured in times.items()}
    print(f"{'':26}{'ms':>8}{'of the limit':>15}{'Lockstep is':>16}")
    for subject, median in medians.items():
        optimizer = subject.rsplit("-", 1)[1]
        share = medians[f"limit-{optimizer}"] / median
        ratio = median / medians[f"lockstep-{optimizer}"]
        print(f"{subject:26}{median / 1000:8.2f}{share:14.0%} {ratio:12.2f} × faster")
    if arguments.json:
        arguments.json.write_text(json.dumps({"threads": arguments.threads, "medians_us": medians}, indent=1) + "\n")


main()
