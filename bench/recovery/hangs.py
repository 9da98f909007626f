#!/usr/bin/env python3
"""Lets one rank hang, again and again, and times how long after the others' deadline the launcher says which rank it is
and what it did not do, and how long from then until all ranks have made a step again.

    bench/recovery/hangs.py --binaries=build/release/bin --rounds=5 --json=hangs.json

Each of shm and gloo: a rank that is stopped, in an endless loop, in a deadlock of two mutexes; and one that skips a
collective that the others make, which is found without a deadline, as calls are compared, and ends the job. Rank 1 of 3 hangs. torchrun beside them:
the same training over gloo with the same deadline, a stopped rank alone.
"""
import contextlib
import os
import signal
import statistics
import sys
import tempfile

from live import HERE, Training

from jobs import PATIENCE_S, find_torchrun, machine, make_parser, seconds_now, write_figures

KINDS = {"stopped": "", "endless loop": "hang", "deadlock": "deadlock", "skips one call": "skip"}
SKIPS = "skips one call"
STEP = 200
RANK = 1


class HangingJob(Training):
    """When its rank begins to hang, and what is said of that."""

    def __init__(self, *arguments, **variables):
        self.hangs_s = None
        self.verdict_s = None
        self.verdict = ""
        self.said = []
        super().__init__(*arguments, **variables)

    def note(self, pid, what, words):
        if what == "hangs" and self.hangs_s is None:
            self.hang()
        super().note(pid, what, words)
        # What was said before that is no step after it.
        if self.verdict_s is None:
            self.stepped = {}

    def hang(self):
        self.hangs_s = seconds_now()
        self.pids_before = dict(self.pids)

    def note_launcher(self, line):
        self.said.append(line)
        names = line.startswith(f"lockstep: hang: rank {RANK} ") or f"rank {RANK} called " in line
        if names and self.hangs_s and not self.verdict_s:
            self.verdict_s, self.verdict = seconds_now(), line


def to_stdout(*command):
    return ["sh", "-c", 'exec "$@" 2>&1', "sh", *command]


def hang_once(arguments, backend, kind):
    fault = {"RESILIENT_WORKER_FAULT": f"{KINDS[kind]}:{STEP}"} if KINDS[kind] else {}
    job = HangingJob(arguments.ranks, to_stdout(arguments.binaries / "lockstep", "run"), arguments.binaries / "resilient_worker",
                     10**9, 16, 0, 0, "", 100, LOCKSTEP_BACKEND=backend, LOCKSTEP_TIMEOUT_S=str(arguments.timeout), **fault)
    with contextlib.closing(job):
        if not fault:
            job.go_on_until(lambda: job.last_step >= STEP, PATIENCE_S)
            os.kill(job.pids[RANK], signal.SIGSTOP)
            job.hang()
        if not job.go_on_until(lambda: job.verdict_s, arguments.timeout + PATIENCE_S):
            return {"problem": "\n".join([f"nothing was said of rank {RANK}", *job.said])}
        if kind == SKIPS:
            return {"verdict_s": job.verdict_s - job.hangs_s, "verdict": job.verdict}
        if not job.go_on_until(job.all_step, PATIENCE_S):
            return {"problem": "\n".join(["the job does not go on", *job.said])}
        replaced = [rank for rank, pid in job.pids.items() if pid != job.pids_before[rank]]
        return {"verdict_s": job.verdict_s - job.hangs_s - arguments.timeout,
                "going_on_s": max(job.stepped.values()) - job.verdict_s, "replaced": replaced, "verdict": job.verdict,
                "said": job.said}


def hang_torchrun(arguments, torchrun):
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        job = Training(arguments.ranks, [torchrun], HERE / "snapshot_worker.py", 16, folder, 1, arguments.timeout,
                       PYTHONWARNINGS="ignore", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with contextlib.closing(job):
            job.go_on_until(lambda: job.last_step >= STEP, PATIENCE_S)
            os.kill(job.pids[RANK], signal.SIGSTOP)
            hangs_s, job.stepped, job.pids = seconds_now(), {}, {}
            job.killed = set()
            if not job.go_on_until(job.all_step, arguments.timeout + arguments.torchrun_patience):
                return {"problem": ""}
            return {"going_on_s": max(job.stepped.values()) - hangs_s - arguments.timeout}


def row_of(subject, kind, rounds):
    row = {"subject": subject, "kind": kind, "rounds": len(rounds)}
    row["problem"] = next((found["problem"] for found in rounds if found.get("problem")), "")
    row["replaced"] = sorted({tuple(found["replaced"]) for found in rounds if "replaced" in found})
    row["said"] = next((found["said"] for found in rounds if found.get("replaced", [RANK]) != [RANK]), [])
    row["verdict"] = next((found["verdict"] for found in rounds if "verdict" in found), "")
    for key in ("verdict_s", "going_on_s"):
        if values := [found[key] for found in rounds if key in found]:
            row |= {key: statistics.median(values), f"{key}_max": max(values)}
    return row


def line_of(row):
    figures = "".join(f"{row[key]:12.2f}" if key in row else f"{'-':>12}"
                      for key in ("verdict_s", "verdict_s_max", "going_on_s", "going_on_s_max"))
    return f"{row['subject']:10}{row['kind']:16}{row['rounds']:7}{figures}"


def main():
    parser = make_parser(__doc__, "lockstep and resilient_worker")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--timeout", type=int, default=2, help="seconds, the deadline of collectives (default 2)")
    parser.add_argument("--ranks", type=int, default=3, help="of the job (default 3)")
    parser.add_argument("--torchrun", help="its path, or none (default: .venv/bin/torchrun or that of PATH)")
    parser.add_argument("--torchrun-patience", type=float, default=60,
                        help="seconds after the deadline until torchrun's job counts as stuck (default 60)")
    parser.add_argument("--quick", action="store_true", help="one round, without torchrun")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.torchrun = 1, "none"
    print(f"{'':26}{'rounds':>7}{'verdict s':>12}{'max':>12}{'goes on s':>12}{'max':>12}")
    rows, before = [], machine()
    for backend in ("shm", "gloo"):
        for kind in KINDS:
            rounds = [hang_once(arguments, backend, kind) for _ in range(arguments.rounds)]
            rows.append(row_of(backend, kind, rounds))
            print(line_of(rows[-1]), flush=True)
    if torchrun := find_torchrun(arguments.torchrun):
        rows.append(row_of("torchrun", "stopped", [hang_torchrun(arguments, torchrun) for _ in range(arguments.rounds)]))
        print(line_of(rows[-1]), flush=True)
    write_figures(arguments.json, benchmark="hangs", machine=before, timeout_s=arguments.timeout, rows=rows)
    for row in rows:
        if row["problem"]:
            sys.exit(f"{row['subject']}, {row['kind']}: {row['problem']}")
        if row["subject"] != "torchrun" and row["kind"] != SKIPS and row["replaced"] != [(RANK,)]:
            sys.exit(f"{row['subject']}, {row['kind']}: rank {RANK} was to be replaced, not {row['replaced']}\n"
                     + "\n".join(row["said"]))


if __name__ == "__main__":
    main()
