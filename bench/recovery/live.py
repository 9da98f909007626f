#!/usr/bin/env python3
"""Kills random ranks of a training that survives it, again and again, and times how long the job takes until
all ranks have made a step again. The others must keep their processes, and the end must have the bits of an
undisturbed run.

    bench/recovery/live.py --binaries=build/release/bin --kills=500 --json=live.json

Subjects: shm and gloo, and each with --standby=1. Most kills fall at a random instant of the training, one of
ten takes two ranks at once. Three of ten fall into the recovery from another: of these one right after all have
begun again, two at any instant before, of a rank that has the state while it meets the others or hands it over.
The job is told to save and end after its kills, and a second one makes the same steps undisturbed.

Beside them torchrun, the same training in Python over gloo with a snapshot every 50 steps, and torchrun-own-store
(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which its restarted workers may read the addresses of dead ones);
kills fall into the training alone. Without a step by all ranks until the deadline a job counts as stuck, one that
has ended as over; then another one is started, and goes on from the snapshot.
"""
import contextlib
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile

from heard_job import HeardJob

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launch"))
from jobs import (  # noqa: E402
    PATIENCE_S, find_torchrun, machine, make_parser, percentile, seconds_now, write_figures)

SUBJECTS = ("shm", "gloo", "shm-standby", "gloo-standby", "torchrun", "torchrun-own-store")
# Longer than a standby worker needs until it is ready.
STANDBY_READY_S = 1.2
TRAINING_S = 0.1
# A recovery takes less, most of it for the start of the newcomer.
RECOVERY_S = 0.25


class Training(HeardJob):
    """Which process is which rank, where it has begun, and who has made a step since the last kill."""

    def __init__(self, ranks, launcher, *program, **variables):
        self.ranks = ranks
        super().__init__([*launcher, "--standalone", f"--nproc-per-node={self.ranks}", "--max-restarts=100000",
                          *program], **variables)
        self.pids = {}      # by rank, of the generation that runs
        self.killed = set()
        self.begins_at = 0
        self.last_step = 0
        self.stepped = {}   # when each of these made its first step there
        self.ends = set()
        self.saved = set()

    def note(self, pid, what, words):
        if what == "starts":
            self.killed.discard(pid)
        elif pid in self.killed:
            pass  # said before it was killed
        elif what == "rank":
            self.pids[int(words[0])] = pid
            self.stepped.pop(int(words[0]), None)
            self.begins_at = int(words[-1])
        elif what == "step":
            self.last_step = max(self.last_step, int(words[0]))
            rank = next((rank for rank, known in self.pids.items() if known == pid), None)
            if rank is not None:
                self.stepped.setdefault(rank, seconds_now())
        elif what == "saved":
            self.saved.add(int(words[-1]))
        elif what == "ends":
            self.ends.add(words[-1])

    def all_step(self):
        return len(self.stepped) == self.ranks

    def kill(self, victims, by=signal.SIGKILL):
        """The processes of the others, by rank."""
        for rank in victims:
            self.killed.add(self.pids[rank])
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids.pop(rank), by)
        self.stepped = {}
        return dict(self.pids)


def resilient(arguments, backend, flags, *worker):
    return Training(arguments.ranks, [arguments.binaries / "lockstep", "run", *flags],
                    arguments.binaries / "resilient_worker", *worker, LOCKSTEP_BACKEND=backend)


def kill_some(training, with_standby, randomness):
    """One kill, or two of which the second falls into the recovery: (kills, the others' processes)."""
    ranks = sorted(training.pids)
    when = 1 if with_standby else randomness.random()
    if when >= 0.3 or (when >= 0.1 and len(ranks) < 3):
        count = 2 if len(ranks) > 2 and randomness.random() < 0.1 else 1
        return count, training.kill(randomness.sample(ranks, count))
    others = training.kill([randomness.choice(ranks)])
    training.listen(randomness.uniform(0, RECOVERY_S))
    if when >= 0.1:
        # One of those that have the state; another one has it, too.
        victim = randomness.choice(sorted(others))
        training.kill([victim])
        del others[victim]
        return 2, others
    training.go_on_until(lambda: len(training.pids) == training.ranks, PATIENCE_S)
    return 2, training.kill([randomness.choice(sorted(training.pids))])


def kill_again_and_again(training, found, kills_in_all, deadline, standby, randomness):
    """Until so many kills are made; false where the training did not survive one, with the problem in `found`."""
    training.go_on_until(training.all_step, PATIENCE_S)
    while found["kills"] < kills_in_all:
        training.listen(STANDBY_READY_S if standby else randomness.uniform(0, TRAINING_S))
        kills, others = kill_some(training, standby, randomness)
        killed_s = seconds_now()
        found["kills"] += kills
        if not training.go_on_until(training.all_step, deadline):
            found["problem"] = f"stuck or ended after {found['kills']} kills:\n{training.text()}"
            return False
        found["ms"].append((max(training.stepped.values()) - killed_s) * 1e3)
        if any(training.pids[rank] != pid for rank, pid in others.items()):
            found["problem"] = f"a survivor lost its process at kill {found['kills']}"
            return False
        if sys.stderr.isatty():
            print(f"\r{found['subject']}: {found['kills']} of {kills_in_all}", end="", file=sys.stderr)
    return True


def run_subject(arguments, backend, standby, randomness):
    name = f"{backend} --standby=1" if standby else backend
    found = {"subject": name, "kills": 0, "ms": [], "problem": ""}
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        flags = ["--standby=1"] if standby else []
        training = resilient(arguments, backend, flags, 10**9, arguments.size, 0, 0, folder, arguments.say_every)
        with contextlib.closing(training):
            if not kill_again_and_again(training, found, arguments.kills, arguments.deadline, standby, randomness):
                return found
            training.process.terminate()
            code = training.end()
            saved = training.saved - {0}  # a standby worker has nothing to save
            if code != 75 or len(saved) != 1:
                found["problem"] = f"exit code {code}, saved after {saved}:\n{training.text()}"
                return found
        steps = saved.pop()
        found["steps"] = steps
        ends = []
        for snapshots in ([0, 0, folder], [0, 0, f"{folder}/none"]):
            last = resilient(arguments, backend, [], steps, arguments.size, *snapshots, 10**9)
            with contextlib.closing(last):
                if last.end() != 0:
                    found["problem"] = last.text()
                    return found
                ends.append(last.ends)
        if ends[0] != ends[1] or len(ends[0]) != 1:
            found["problem"] = f"after {steps} steps other bits than the undisturbed run: {ends}"
    return found


def run_torchrun(ranks, kills, deadline, name, torchrun, randomness, worker, *, with_own_store):
    """worker(folder): the program and its arguments, which goes on from the snapshots that it finds there."""
    found = {"subject": name, "kills": 0, "ms": [], "stuck": 0, "over": 0, "lost": [], "problem": ""}
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if with_own_store else {}
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        while found["kills"] < kills:
            training = Training(ranks, [torchrun], *worker(folder), PYTHONWARNINGS="ignore", **variables)
            with contextlib.closing(training):
                if not training.go_on_until(training.all_step, PATIENCE_S):
                    found["problem"] = f"the job did not start:\n{training.text()}"
                    return found
                while found["kills"] < kills:
                    training.listen(randomness.uniform(0, TRAINING_S))
                    training.kill([randomness.choice(sorted(training.pids))])
                    killed_s, steps = seconds_now(), training.last_step + 1
                    found["kills"] += 1
                    if sys.stderr.isatty():
                        print(f"\r{name}: {found['kills']} of {kills}", end="", file=sys.stderr)
                    if not training.go_on_until(training.all_step, deadline):
                        found["over" if training.process.poll() is not None else "stuck"] += 1
                        break
                    found["ms"].append((max(training.stepped.values()) - killed_s) * 1e3)
                    found["lost"].append(steps - training.begins_at)
    return found


def row_of(found):
    row = {key: found.get(key, 0) for key in ("subject", "kills", "stuck", "over", "steps", "problem")}
    row["steps_lost"] = statistics.mean(found["lost"]) if found.get("lost") else 0
    if found.get("step_ms"):
        row["ms_step"] = statistics.median(found["step_ms"])
    if found["ms"]:
        row |= {"ms": statistics.median(found["ms"]), "ms_p99": percentile(found["ms"], 0.99),
                "ms_max": max(found["ms"])}
    return row


def line_of(row):
    figures = "".join(f"{row[key]:10.0f}" if key in row else f"{'-':>10}" for key in ("ms", "ms_p99", "ms_max", "ms_step"))
    return (f"{row['subject']:36}{row['kills']:7}{row['stuck']:7}{row['over']:6}{row['steps_lost']:12.0f}"
            f"{row['steps']:10}{figures}")


def table_of(rows):
    """As docs/launcher.md has it."""
    lines = ["| killed ranks | kills | stuck | median | 99th percentile | longest | steps lost per kill |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        times = " | ".join(f"{row[key] / 1e3:.3f} s" if key in row else "" for key in ("ms", "ms_p99", "ms_max"))
        lines.append(f"| {row['subject']} | {row['kills']} | {row['stuck'] + row['over']} | {times} | "
                     f"{row['steps_lost']:.0f} |")
    return "\n".join(lines)


def add(found, more):
    """What one more job of a subject has found."""
    for key, value in more.items():
        if key == "problem":
            found[key] = found.get(key) or value
        elif key != "subject":
            found[key] = found.get(key, type(value)()) + value


def report(benchmark, arguments, run_one, rounds=1):
    """Prints a line of each subject as soon as it is measured, in the last of `rounds` jobs of each, by turns. Ends the
    program where one has a problem."""
    print(f"seed {arguments.seed}")
    print(f"{'':36}{'kills':>7}{'stuck':>7}{'over':>6}{'steps lost':>12}{'steps':>10}{'ms':>10}{'p99':>10}{'max':>10}"
          f"{'a step':>10}")
    rows, before, measured = [], machine(), {}
    for number in range(rounds):
        for subject in arguments.subjects:
            if more := run_one(arguments, subject, number):
                add(measured.setdefault(subject, {"subject": more["subject"]}), more)
                print("\r\033[K" * sys.stderr.isatty(), end="", file=sys.stderr)
                if number == rounds - 1:
                    rows.append(row_of(measured[subject]))
                    print(line_of(rows[-1]), flush=True)
    if arguments.table:
        print(table_of(rows))
    write_figures(arguments.json, benchmark=benchmark, machine=before, seed=arguments.seed, rows=rows)
    for row in rows:
        if row["problem"]:
            sys.exit(f"{row['subject']}: {row['problem']}")


def run(arguments, subject, _):
    randomness = random.Random(f"{arguments.seed} {subject}")
    if subject.startswith("torchrun"):
        if not (torchrun := find_torchrun(arguments.torchrun)):
            return None
        return run_torchrun(arguments.ranks, arguments.torchrun_kills, arguments.deadline, subject, torchrun,
                            randomness, lambda folder: (HERE / "snapshot_worker.py", arguments.size, folder, 1),
                            with_own_store=subject != "torchrun")
    backend, _, standby = subject.partition("-")
    return run_subject(arguments, backend, bool(standby), randomness)


def parser_of(description, worker, subjects, kills):
    """Of the options that this program and accelerator.py share."""
    parser = make_parser(description, f"lockstep and {worker}")
    parser.add_argument("--subjects", type=lambda text: text.split(","), default=list(subjects))
    parser.add_argument("--kills", type=int, default=kills, help="of each subject (default %(default)s)")
    parser.add_argument("--torchrun", help="its path, or none (default: .venv/bin/torchrun or that of PATH)")
    parser.add_argument("--torchrun-kills", type=int, default=10, help="of torchrun's subjects (default 10)")
    parser.add_argument("--deadline", type=float, default=20, help="seconds until stuck (default 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--table", action="store_true", help="print the figures as a table of Markdown, too")
    return parser


def parse(parser, subjects):
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(subjects):
        parser.error(f"there is no {unknown.pop()}; choose of {', '.join(subjects)}")
    return arguments


def main():
    parser = parser_of(__doc__, "resilient_worker", SUBJECTS, 500)
    parser.add_argument("--ranks", type=int, default=3, help="of the job (default 3)")
    parser.add_argument("--size", type=int, default=16,
                        help="width of the network; 833000 makes 10 million parameters (default 16)")
    parser.add_argument("--say-every", type=int, default=100, help="steps between a worker's lines (default 100)")
    parser.add_argument("--quick", action="store_true", help="6 kills of shm and gloo")
    arguments = parse(parser, SUBJECTS)
    if arguments.quick:
        arguments.kills, arguments.subjects = 6, ["shm", "gloo"]
    report("live recovery", arguments, run)


if __name__ == "__main__":
    main()
