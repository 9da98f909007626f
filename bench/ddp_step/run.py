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
import importlib.util
import statistics
import sys

import turns


def measure(arguments):
    """{(model, exchange, placement): [µs, ...]}"""
    times = {}
    subjects = {exchange: (exchange, "sgd") for exchange in arguments.exchanges}
    for model, exchange, placement, answer in turns.take_turns(arguments, subjects):
        times.setdefault((model, exchange, placement), []).extend(answer["us"])
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
    parser = turns.make_parser(__doc__, models=list(turns.STEPS), rounds=7)
    parser.add_argument("--exchanges", type=turns.names,
                        default=["none", "lockstep-shm", "lockstep-gloo", "c10d-shm", "pytorch"])
    arguments = parser.parse_args()
    turns.check_names(parser, "model", arguments.models, turns.STEPS)
    if "pytorch" in arguments.exchanges and importlib.util.find_spec("torch") is None:
        parser.error(f"{sys.executable} has no torch to time; use .venv/bin/python, or name "
                     "--exchanges without pytorch")
    return arguments


def main():
    arguments = parse_arguments()
    rows = rows_of(measure(arguments))
    print(table_of(rows))
    turns.write_json(arguments, "ddp-step", rows)


if __name__ == "__main__":
    main()
