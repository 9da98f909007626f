#!/usr/bin/env python3
"""Times the launcher beside a plain fork and exec and beside torchrun, in alternation, so that all
see the same machine; medians over the rounds. `lockstep bench launch` runs it.

    bench/launch/run.py --binaries=build/release/bin --json=launch.json

first instruction   from before the launcher is executed to the first instruction of the last worker, a
                    program without libraries; two launchers: --nnodes=2, c10d, over loopback
launcher's end      from the end of the last worker to the launcher's
first step          to the end of the first training step of 2 ranks with a small model
memory              of the launcher and its helper processes, without the workers, while 2 workers run
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import sys

from jobs import MARK, ROOT, Hold, Job, file_to_write, find_torchrun, free_port, machine, marked_processes, scratch

HERE = pathlib.Path(__file__).resolve().parent
# What, and its unit; "exec" is the worker without any launcher.
CASES = {"first instruction, 1 worker": "ms", "first instruction, 2 workers": "ms",
         "first instruction, 8 workers": "ms", "first instruction, two launchers": "ms",
         "launcher's end, 2 workers": "ms", "first step, 2 ranks": "ms",
         "memory, resident": "MB", "memory, proportional share": "MB"}
SUBJECTS = ("exec", "lockstep", "torchrun")


class Subject:
    """A way to start workers; each method gives {case: figure}."""

    def __init__(self, name, launcher, binaries):
        self.name = name
        self.launcher = launcher
        self.worker = binaries / "lockstep-launch-worker"
        step_worker = binaries / "step_worker"
        if name == "lockstep":
            self.step_command = [step_worker] if step_worker.exists() else None
        else:
            self.step_command = [HERE / "step_worker.py"]

    def command(self, workers, *program, script=False):
        if self.name == "exec":
            return program
        no_python = [] if script else ["--no-python"]
        return [*self.launcher, "--standalone", f"--nproc-per-node={workers}", *no_python, *program]

    def first_instruction(self, workers):
        with scratch() as (folder, pipe), Job(self.command(workers, self.worker, pipe.path),
                                              folder) as job:
            first = max(int(line[2]) for line in pipe.expect(workers, "first"))
            last = max(int(line[2]) for line in pipe.expect(workers, "last"))
            figures = {f"first instruction, {workers} worker{'s'[:workers > 1]}":
                       (first - job.started_ns) / 1e6}
            end_ns = job.end_ns()
            if workers == 2:
                figures["launcher's end, 2 workers"] = (end_ns - last) / 1e6
            return figures

    def two_launchers(self):
        command = [*self.launcher, "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
                   f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=bench",
                   "--local-addr=127.0.0.1", "--no-python"]
        with scratch() as (folder, pipe), contextlib.ExitStack() as jobs:
            secret = {"LOCKSTEP_JOB_SECRET": "of the benchmark"}
            started = [jobs.enter_context(Job([*command, self.worker, pipe.path], folder, **secret))
                       for _ in range(2)]
            first = max(int(line[2]) for line in pipe.expect(2, "first"))
            for job in started:
                job.end_ns()
            return {"first instruction, two launchers": (first - started[0].started_ns) / 1e6}

    def first_step(self):
        if not self.step_command:
            return {}
        with scratch() as (folder, pipe), Job(
                self.command(2, *self.step_command, pipe.path, 1, script=self.name == "torchrun"),
                folder) as job:
            lines = pipe.expect(4, "0")  # of each rank its start and its first step
            job.end_ns()
            last = max(int(line[4]) for line in lines if line[3] == "0")
            return {"first step, 2 ranks": (last - job.started_ns) / 1e6}

    def memory(self):
        with scratch() as (folder, pipe):
            hold = Hold(folder)
            with Job(self.command(2, self.worker, pipe.path, hold.path), folder) as job:
                workers = {int(line[3]) for line in pipe.expect(2, "first")}
                own = set(marked_processes(f"{MARK}={job.mark}")) - workers
                resident, share = map(sum, zip(*map(memory_of, own)))
                hold.let_go()
                pipe.expect(2, "last")
                job.end_ns()
        return {"memory, resident": resident / 1e6, "memory, proportional share": share / 1e6}

    def measure(self):
        figures = {}
        for workers in (1,) if self.name == "exec" else (1, 2, 8):
            figures |= self.first_instruction(workers)
        if self.name != "exec":
            figures |= self.two_launchers() | self.first_step() | self.memory()
        return figures


def memory_of(pid):
    """(resident, proportional share) in bytes."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        sizes = {words[0]: int(words[1]) * 1024 for words in map(str.split, file)
                 if words[0] in ("Rss:", "Pss:")}
    return sizes["Rss:"], sizes["Pss:"]


def measure(subjects, rounds):
    """{case: {subject: [figure of each round]}}"""
    found = {case: {} for case in CASES}
    for turn in range(rounds):
        # Each is first in turn: who comes after torchrun finds other caches.
        for subject in subjects[turn % len(subjects):] + subjects[:turn % len(subjects)]:
            if sys.stderr.isatty():
                print(f"\r\033[Kround {turn + 1} of {rounds}: {subject.name}", end="",
                      file=sys.stderr, flush=True)
            for case, figure in subject.measure().items():
                found[case].setdefault(subject.name, []).append(figure)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return found


def rows_of(found):
    rows = []
    for case, figures in found.items():
        row = {"case": case, "unit": CASES[case]}
        for subject, values in figures.items():
            row[subject] = statistics.median(values)
            row[f"{subject}_min"], row[f"{subject}_max"] = min(values), max(values)
        # A round's own ratio: its figures saw the same minute of the machine.
        pairs = list(zip(figures.get("torchrun", []), figures.get("lockstep", [])))
        if pairs:
            row["torchrun_over_lockstep"] = statistics.median(theirs / own for theirs, own in pairs)
        rows.append(row)
    return rows


def table_of(rows):
    lines = [f"{'median':36}{'exec':>10}{'lockstep':>10}{'torchrun':>10}{'ratio':>9}"]
    for row in rows:
        figures = "".join(f"{row[subject]:10.4g}" if subject in row else f"{'-':>10}"
                          for subject in SUBJECTS)
        ratio = f"{row['torchrun_over_lockstep']:8.3g}x" if "torchrun_over_lockstep" in row else ""
        lines.append(f"{row['case'] + ', ' + row['unit']:36}{figures}{ratio:>9}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="lockstep bench launch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build/release/bin",
                        help="folder of lockstep")
    parser.add_argument("--torchrun", help="its path, or none (default: .venv/bin/torchrun or that of PATH)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default 7)")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", type=file_to_write, help="write all figures to this file; - for stdout")
    arguments = parser.parse_args()
    binaries = arguments.binaries.resolve()
    if not (binaries / "lockstep-launch-worker").exists():
        sys.exit(f"there is no {binaries}/lockstep-launch-worker; build the target benchmarks")
    subjects = [Subject("exec", [], binaries),
                Subject("lockstep", [binaries / "lockstep", "run"], binaries)]
    if torchrun := find_torchrun(arguments.torchrun):
        subjects.append(Subject("torchrun", [torchrun], binaries))
    before = machine()
    rows = rows_of(measure(subjects, 1 if arguments.quick else max(1, arguments.rounds)))
    report = json.dumps({"benchmark": "launch", "machine": before, "rows": rows}, indent=2)
    print(report if arguments.json == "-" else table_of(rows))
    if arguments.json not in (None, "-"):
        pathlib.Path(arguments.json).write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
