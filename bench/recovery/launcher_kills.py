#!/usr/bin/env python3
"""Kills the launcher with SIGKILL at random moments and counts what is left a second later: processes of
the job, those in sessions of their own included, shared memory, temporary files and control groups.

    bench/recovery/launcher_kills.py --binaries=build/release/bin --kills=200

Each worker is a shell that starts two processes by setsid, one of them with a child, and then trains over
shm. Half of the kills fall into the launcher's own start, half into that of the workers and the training.
"""
import json
import os
import pathlib
import random
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launch"))
from jobs import (  # noqa: E402
    MARK, Job, machine, make_parser, marked_processes, scratch, seconds_now, write_figures)

LIMIT_S = 1
# Between which moments after the launcher's start a kill falls.
OWN_START_S, LATER_S = (0, 0.04), (0.04, 0.8)
SCRIPT = 'setsid sleep 600 & setsid sh -c "sleep 600; :" & exec "$0" "$1"'
SHARED_MEMORY = ("/dev/shm", "/proc/sysvipc/shm")


def shared_memory():
    """Names in /dev/shm and segments of System V."""
    with open(SHARED_MEMORY[1], encoding="utf-8") as file:
        segments = {line.split()[1] for line in file.readlines()[1:]}
    return set(os.listdir(SHARED_MEMORY[0])) | segments


def control_groups(launcher):
    """Those that it made, in any place where some may be made."""
    return [str(path) for path in pathlib.Path("/sys/fs/cgroup").rglob(f"lockstep-{launcher}-*")]


def kill_once(binaries, delay_s):
    """What was there at the kill and what is left after LIMIT_S."""
    with scratch() as (folder, pipe):
        temporary = os.path.join(folder, "tmp")
        os.mkdir(temporary)
        segments = shared_memory()
        command = [binaries / "lockstep", "run", "--standalone", "--nproc-per-node=2", "sh", "-c",
                   SCRIPT, binaries / "step_worker", pipe.path]
        with Job(command, folder, LOCKSTEP_BACKEND="shm", TMPDIR=temporary) as job:
            mark = f"{MARK}={job.mark}"
            end_s = seconds_now() + delay_s
            while pipe.read(end_s):
                pass
            there = len(marked_processes(mark))
            job.process.kill()
            killed_s = seconds_now()
            job.process.wait()
            gone_s = None
            while seconds_now() < killed_s + LIMIT_S:
                if not (marked_processes(mark) or os.listdir(temporary) or control_groups(job.process.pid)):
                    gone_s = seconds_now() - killed_s
                    break
                time.sleep(0.005)
            return {"delay_s": delay_s, "processes_before": there, "gone_s": gone_s,
                    "processes": [name_of(pid) for pid in marked_processes(mark)],
                    "files": os.listdir(temporary),
                    "control_groups": control_groups(job.process.pid),
                    "shared_memory": sorted(shared_memory() - segments)}


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text("utf-8").replace("\0", " ").strip()
    except OSError:
        return "one that has just ended"


def main():
    parser = make_parser(__doc__, "lockstep and step_worker")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--quick", action="store_true", help="4 kills")
    arguments = parser.parse_args()
    moments = (OWN_START_S, LATER_S)
    if arguments.quick:
        arguments.kills = 4
    print(f"seed {arguments.seed}")
    randomness, before, kills = random.Random(arguments.seed), machine(), []
    for number in range(arguments.kills):
        if sys.stderr.isatty():
            print(f"\r\033[K{number} of {arguments.kills}", end="", file=sys.stderr, flush=True)
        kills.append(kill_once(arguments.binaries, randomness.uniform(*moments[number % len(moments)])))
    left = {what: sum(len(kill[what]) for kill in kills)
            for what in ("processes", "files", "shared_memory", "control_groups")}
    gone = [kill["gone_s"] * 1e3 for kill in kills if kill["gone_s"] is not None]
    print(f"\r{len(kills)} launchers killed, with {sum(kill['processes_before'] for kill in kills)} "
          f"processes; left after {LIMIT_S} s: {left['processes']} processes, {left['files']} temporary "
          f"files, {left['shared_memory']} shared memory segments, {left['control_groups']} control groups")
    if gone:
        print(f"all gone after {statistics.median(gone):.0f} ms (median), {max(gone):.0f} ms (longest)")
    write_figures(arguments.json, benchmark="launcher-kills", machine=before, seed=arguments.seed, left=left,
                  kills=kills)
    if any(left.values()):
        sys.exit(json.dumps(next(kill for kill in kills if any(kill[what] for what in left))))


if __name__ == "__main__":
    main()
