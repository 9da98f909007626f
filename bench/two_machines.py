#!/usr/bin/env python3
"""Times the all-reduce between two machines: 2 × 2 ranks in two network namespaces, joined by a cable of
several speeds; the backend hierarchical against gloo, in turns within one job. Needs root and iproute2.

    bench/two_machines.py --build=build/release --json=two_machines.json

The loop and the check of every sum are those of `lockstep bench`, whose ranks this starts on both.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python/support"))
from missing import Missing  # noqa: E402
from network_namespaces import TwoMachines  # noqa: E402

RANKS_EACH = 2


def measure(build, rate, sizes, rounds):
    """The rows of `lockstep bench --json`."""
    with TwoMachines(rate) as machines, tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch) / "report.json"
        program = [build / "bin/lockstep-bench-rank", "all-reduce", f"--nproc-per-node={2 * RANKS_EACH}",
                   "--backends=hierarchical,gloo", f"--sizes={','.join(map(str, sizes))}",
                   f"--rounds={rounds}", f"--json={report}"]
        jobs = [subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
                for command in machines.launchers(build / "bin/lockstep", RANKS_EACH, program)]
        statuses = [job.wait() for job in jobs]
        if any(statuses):
            raise SystemExit(f"the launchers ended with {statuses}")
        return json.loads(report.read_text())["rows"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--rates", default="10gbit,unlimited", help="of the cable, as tc takes them")
    parser.add_argument("--sizes", default="4,65536,1048576,4194304,46758048")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    results = []
    print(f"{'cable':>10} {'bytes':>11} {'gloo µs':>10} {'hierarchical µs':>16} {'ratio':>6}")
    for rate in arguments.rates.split(","):
        try:
            rows = measure(arguments.build.resolve(), None if rate == "unlimited" else rate, sizes,
                           arguments.rounds)
        except Missing as missing:
            raise SystemExit(f"two_machines.py: {missing}") from None
        for size in sizes:
            us = {row["backend"]: row["us"] for row in rows if row["bytes"] == size}
            results.append({"cable": rate, "bytes": size, "gloo_us": us["gloo"],
                            "hierarchical_us": us["hierarchical"],
                            "ratio": us["gloo"] / us["hierarchical"]})
            print(f"{rate:>10} {size:>11} {us['gloo']:>10.0f} {us['hierarchical']:>16.0f} "
                  f"{results[-1]['ratio']:>6.2f}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
