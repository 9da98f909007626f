#!/usr/bin/env python3
"""Starts many jobs at once on one machine, each with a store of its own, and counts those that fail and
the ports that two of them were given: none may.

    bench/launch/at_once.py --binaries=build/release/bin --launches=200
    bench/launch/at_once.py --binaries=build/release/bin --launches=40 --train

--train: two ranks of each job meet over the store and make a training step (a step_worker takes 100 MB).
Otherwise each job's worker waits until all jobs run, so that all ports are taken at the same time.
"""
import contextlib
import sys

from jobs import Hold, Job, TookTooLong, machine, make_parser, scratch, seconds_now, write_figures


def launch_all(arguments):
    """(ports of the jobs, reports of failed ones, seconds)"""
    launcher = [arguments.binaries / "lockstep", "run", "--standalone"]
    ports, failed = [], []
    with scratch() as (folder, pipe), contextlib.ExitStack() as jobs:
        if arguments.train:
            program = ["--nproc-per-node=2", arguments.binaries / "step_worker", pipe.path, 1]
        else:
            hold = Hold(folder)
            program = [arguments.binaries / "lockstep-launch-worker", pipe.path, hold.path]
        started_s = seconds_now()
        started = [jobs.enter_context(Job([*launcher, *program], folder))
                   for _ in range(arguments.launches)]
        if arguments.train:
            pipe.expect(4 * arguments.launches, "0")  # a rank's start and its first step
        else:
            try:
                ports = [line[4] for line in pipe.expect(arguments.launches, "first")]
            except TookTooLong as error:
                failed.append(str(error))
            hold.let_go()
            if not failed:
                pipe.expect(arguments.launches, "last")
        for job in started:
            try:
                job.end_ns()
            except (TookTooLong, RuntimeError) as error:
                failed.append(str(error))
        return ports, failed, seconds_now() - started_s


def main():
    parser = make_parser(__doc__, "lockstep, step_worker and lockstep-launch-worker")
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--quick", action="store_true", help="20 launches")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.launches = 20
    before = machine()
    ports, failed, took_s = launch_all(arguments)
    shared = len(ports) - len(set(ports))
    print(f"{arguments.launches} launches at once: {len(failed)} failed, {shared} ports given twice, "
          f"{took_s:.2f} s")
    write_figures(arguments.json, benchmark="at-once", machine=before, launches=arguments.launches,
                  train=arguments.train, failed=failed, ports_given_twice=shared, s=took_s)
    if failed or shared:
        sys.exit("\n".join(failed[:3]))


if __name__ == "__main__":
    main()
