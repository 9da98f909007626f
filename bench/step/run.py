#!/usr/bin/env python3
"""Times whole data-parallel training steps with AdamW, two ranks with one thread each, all ways in turns:
plain LibTorch, Lockstep's replicas, Lockstep's one copy per machine, PyTorch's DistributedDataParallel
over Gloo in Python. A step is zero_grad, forward, backward, the exchange of gradients and AdamW.

    bench/step/run.py --build=build/release --python --json=FILE

"after backward" is the median step without that of "none", forward and backward alone; "step()" is the time
in the optimizer, which with one copy averages the gradients. "limit" is the memory traffic of the update of
one copy, after forward and backward without exchange; "of limit" is its share of the time after backward.

    bench/step/run.py --ways=none,one-copy,limit --models=written1mb,written16mb,written256mb,written1024mb

shows how one copy grows with the model: written... only writes so many MB of gradients.
"""
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp_step"))
import turns  # noqa: E402

# What a row is called: exchange and optimizer of ddp_step.
WAYS = {
    "none": ("none", "none"),
    "libtorch": ("c10d-gloo", "adamw"),
    "replicas": ("lockstep-shm", "lockstep-adamw"),
    "one-copy": ("onecopy-shm", "lockstep-adamw"),
    "limit": ("barrier-shm", "limit"),
    "pytorch-fused": ("pytorch", "adamw-fused"),
    "pytorch-foreach": ("pytorch", "adamw-foreach"),
}


def measure(arguments):
    """{(model, way, placement): {"us": [...], "step_us": [...]}}"""
    times = {}
    subjects = {way: WAYS[way] for way in arguments.ways}
    for model, way, placement, answer in turns.take_turns(arguments, subjects):
        row = times.setdefault((model, way, placement), {"us": [], "step_us": []})
        for key, values in row.items():
            values.extend(answer[key])
    return times


def rows_of(times):
    rows = []
    for (model, way, placement), values in times.items():
        median = {key: statistics.median(of_key) / 1e3 for key, of_key in values.items()}
        row = {"model": model, "way": way, "placement": placement, "ms": median["us"],
               "step_ms": median["step_us"], "steps": len(values["us"])}
        none = times.get((model, "none", placement))
        if none:
            row["after_backward_ms"] = row["ms"] - statistics.median(none["us"]) / 1e3
        rows.append(row)
    limits = {(row["model"], row["placement"]): row.get("after_backward_ms") for row in rows if row["way"] == "limit"}
    for row in rows:
        limit = limits.get((row["model"], row["placement"]))
        if limit and row.get("after_backward_ms"):
            row["share_of_limit"] = limit / row["after_backward_ms"]
    return rows


def table_of(rows):
    lines = [f"{'model':14}{'way':17}{'placement':11}{'ms':>10}{'after backward':>16}{'step()':>10}{'of limit':>10}"]
    for row in rows:
        after = f"{row['after_backward_ms']:.4g}" if "after_backward_ms" in row else "-"
        share = f"{row['share_of_limit']:.0%}" if "share_of_limit" in row else "-"
        lines.append(f"{row['model']:14}{row['way']:17}{row['placement']:11}{row['ms']:10.4g}"
                     f"{after:>16}{row['step_ms']:10.4g}{share:>10}")
    return "\n".join(lines)


def parse_arguments():
    parser = turns.make_parser(__doc__, models=["mlp", "mingpt", "resnet18", "written"], rounds=5)
    parser.add_argument("--ways", type=turns.names, help=f"of {', '.join(WAYS)}; default: all")
    parser.add_argument("--python", action="store_true",
                        help="PyTorch too; run it by a Python that has torch")
    arguments = parser.parse_args()
    if not arguments.ways:
        arguments.ways = [way for way in WAYS if arguments.python or not way.startswith("pytorch")]
    turns.check_names(parser, "way", arguments.ways, WAYS)
    turns.check_names(parser, "model", arguments.models, turns.STEPS)
    return arguments


def main():
    arguments = parse_arguments()
    rows = rows_of(measure(arguments))
    print(table_of(rows))
    turns.write_json(arguments, "step", rows)


if __name__ == "__main__":
    main()
