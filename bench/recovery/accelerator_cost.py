#!/usr/bin/env python3
"""What recovery costs an Accelerator's loop while nothing fails: a step with AcceleratorOptions::recover against the
same step without. Both run in the same processes, by turns, so that they see the same machine. As in cost.py, on a busy
machine the least of all turns says more, and of a single rank (--ranks=1), which waits for nobody, the most.

    bench/recovery/accelerator_cost.py --binaries=build/release/bin --json=accelerator_cost.json

Workloads: a linear layer of 20 inputs with SGD, 32 rows a rank, and 0.1 million parameters with Adam. With
--workloads=sharded 6 million parameters with Adam, fully sharded: ranks leave copies of their shards in each step.
"""

from cost import run_command, row_of_turns
from jobs import machine, make_parser, write_figures

# Of a job: turns, and steps of a turn.
WORKLOADS = {"toy": (100, 400), "adam": (60, 60), "sharded": (10, 20)}


def turns_of(arguments, workload):
    """[(us of a step without recovery, us of one with it)] of each turn of one job."""
    figures = run_command(arguments, f"{workload}, {arguments.ranks} ranks", "accelerator_cost", workload,
                          *WORKLOADS[workload])
    return list(zip(figures["plain_us"], figures["recovering_us"]))


def main():
    parser = make_parser(__doc__, "lockstep and accelerator_cost")
    parser.add_argument("--ranks", type=int, default=2, help="of the jobs (default 2)")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=["toy", "adam"],
                        help=f"of {', '.join(WORKLOADS)} (default toy,adam)")
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each (default 5)")
    arguments = parser.parse_args()
    turns, before = {workload: [] for workload in arguments.workloads}, machine()
    for _ in range(arguments.rounds):
        for workload, found in turns.items():
            found += turns_of(arguments, workload)
    print(f"{'workload':10}{'turns':>6}{'plain, us':>11}{'us':>9}{'cost':>9}"
          f"{'least, us':>11}{'us':>9}{'cost':>9}")
    rows = []
    for workload, found in turns.items():
        row = row_of_turns(found)
        rows.append({"workload": workload, "ranks": arguments.ranks, **row})
        print(f"{workload:10}{row['turns']:6}{row['plain']:11.1f}{row['adds']:9.2f}{row['cost']:9.2%}"
              f"{row['least_plain']:11.1f}{row['least_adds']:9.2f}{row['least_cost']:9.2%}")
    write_figures(arguments.json, benchmark="cost of an Accelerator's recovery", machine=before, rows=rows)


if __name__ == "__main__":
    main()
