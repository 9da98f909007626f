#!/usr/bin/env python3
"""Trains the ladder's models for a moment in Lockstep and in PyTorch, Accelerate and Lightning
Fabric, each job a fresh start of its launcher, all in turns, so that all see the same machine.

    bench/training/run.py --json=training.json
    bench/training/report.py training.json --html=docs/training.html

A job is timed from its start to its first complete step, then step by step for a second with a
batch at hand (zero gradients, forward, backward, optimizer), then for an epoch through the
framework's own loader; the slowest rank counts, and the peak memory of the largest. Run it by a
Python that has torch, for Accelerate and Fabric also `pip install accelerate lightning`; a framework
that is not there is left out, which is said. Build the target `benchmarks` first.
"""
import argparse
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
JOB_TIMEOUT_S = 180
# Samples of an epoch.
SAMPLES = {"toy": 4096, "linear": 4096, "mlp": 1024, "mingpt": 256, "resnet18": 128}
FRAMEWORKS = {"lockstep": None, "pytorch": "torch", "pytorch-kept": "torch",
              "accelerate": "accelerate", "fabric": "lightning"}
# What Lockstep asks of malloc by itself (docs/decisions/0011): PyTorch with it, for comparison.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20),
                     "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}


@dataclasses.dataclass(frozen=True)
class Job:
    task: str
    parallel: str  # ddp, dp, or none: processes that do not communicate
    precision: str
    processes: int
    framework: str

    def command(self, binaries, result):
        words = [self.task, f"--parallel={self.parallel}", f"--precision={self.precision}",
                 f"--samples={SAMPLES[self.task]}", f"--result={result}"]
        if self.framework == "lockstep":
            launch = [binaries / "lockstep", "run", "--standalone",
                      f"--nproc-per-node={self.processes}"]
            program = [binaries / "training"]
        else:
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                      f"--nproc-per-node={self.processes}"]
            program = [HERE / "training.py"]
            words.append(f"--framework={self.framework.removesuffix('-kept')}")
        if self.parallel == "dp":
            launch = [] if self.framework == "lockstep" else [sys.executable]
        return [str(part) for part in [*launch, *program, *words]]


def all_jobs(tasks, frameworks):
    """In the order in which they run: what is compared lies side by side."""
    jobs = []
    for task in tasks:
        is_small = task != "resnet18"
        for precision in ["float32"] if is_small else ["float32", "bfloat16"]:
            peers = [name for name in frameworks
                     if is_small or name == "lockstep" or FRAMEWORKS[name] == "torch"]
            alone = [name for name in peers if name != "pytorch-kept"]
            if not is_small:
                jobs += [Job(task, "dp", precision, 1, name) for name in alone]
            for processes, names in ((1, alone), (2, peers)):
                jobs += [Job(task, "ddp", precision, processes, name) for name in names]
            jobs.append(Job(task, "none", precision, 2, "lockstep"))
    return jobs


def figures_of(times):
    times = sorted(times)
    return {"median": statistics.median(times), "least": times[0],
            "p90": times[int(0.9 * (len(times) - 1))], "count": len(times)}


def run_job(job, binaries, folder):
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    threads = 2 if job.parallel == "dp" else 1
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    if job.framework == "pytorch-kept":
        environment |= KEEP_FREED_MEMORY
    start = time.monotonic()
    try:
        done = subprocess.run(job.command(binaries, result), env=environment, capture_output=True,
                              text=True, timeout=JOB_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        sys.exit(f"run.py: there is no {error.filename}; build the target benchmarks, or name the "
                 "build with --build")
    except subprocess.TimeoutExpired:
        sys.exit(f"run.py: {job} took more than {JOB_TIMEOUT_S} s; look for what holds it up")
    if done.returncode != 0 or not result.exists():
        sys.exit(f"run.py: {job} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    answer = json.loads(result.read_text(encoding="utf-8"))
    answer["start_up_s"] = answer.pop("first_step_at_s") - start
    answer["step_s"] = figures_of(answer.pop("steps_s"))
    return answer


def measure(jobs, rounds, binaries, write):
    """Hands all runs to `write` after each round."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            for number, job in enumerate(jobs if turn % 2 == 0 else reversed(jobs)):
                if sys.stderr.isatty():
                    print(f"\r\033[Kround {turn + 1} of {rounds}, job {number + 1} of {len(jobs)}: "
                          f"{job.task}, {job.framework}", end="", file=sys.stderr, flush=True)
                answer = run_job(job, binaries, pathlib.Path(folder))
                runs.append({**dataclasses.asdict(job), "round": turn, **answer})
            write(runs)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def is_there(package):
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def describe_machine():
    cpu = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text())
    packages = [name for name in FRAMEWORKS.values() if name and is_there(name)]
    return {"cpu": cpu[1] if cpu else platform.machine(), "processors": os.cpu_count(),
            "system": platform.platform(), "date": time.strftime("%Y-%m-%d"),
            "versions": {name: importlib.metadata.version(name) for name in packages}}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--build", default="build/release", help="where Lockstep was built")
    parser.add_argument("--tasks", type=split, default=list(SAMPLES),
                        help=f"of {', '.join(SAMPLES)}")
    parser.add_argument("--frameworks", type=split, default=list(FRAMEWORKS),
                        help=f"of {', '.join(FRAMEWORKS)}")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each job (default 5)")
    parser.add_argument("--json", help="the file to write", required=True)
    arguments = parser.parse_args()
    for names, known in ((arguments.tasks, SAMPLES), (arguments.frameworks, FRAMEWORKS)):
        for name in names:
            if name not in known:
                parser.error(f"there is no '{name}'; choose of {', '.join(known)}")
    for name in list(arguments.frameworks):
        package = FRAMEWORKS[name]
        if package and not is_there(package):
            print(f"run.py: {name} is left out: {sys.executable} has no {package}; "
                  f"pip install {package}", file=sys.stderr)
            arguments.frameworks.remove(name)
    return arguments


def main():
    arguments = parse_arguments()
    report = {"benchmark": "training",
              "command": " ".join(["bench/training/run.py", *sys.argv[1:]]),
              "machine": describe_machine()}

    def write(runs):
        text = json.dumps({**report, "runs": runs}, indent=1)
        pathlib.Path(arguments.json).write_text(text, encoding="utf-8")

    measure(all_jobs(arguments.tasks, arguments.frameworks), arguments.rounds,
            pathlib.Path(arguments.build).resolve() / "bin", write)


if __name__ == "__main__":
    main()
