#!/usr/bin/env python3
"""Compares fully sharded training with DistributedDataParallel and with PyTorch's FSDP2 over Gloo: the time of a step,
all ways in turns, and the memory of a rank, a job for each way. One thread a rank, AdamW, units are the blocks of a
GPT. Run it by a Python that has torch, on a machine that does nothing else.

    bench/fully_shard/run.py --build=build/release --ranks=2 --rounds=5 --json=FILE
    bench/fully_shard/run.py --build=build/release --ranks=4 --cable=10gbit --json=FILE

--cable divides the ranks between two machines: network namespaces joined by a cable of that rate. It needs root and
iproute2.

Memory is the proportional set size (Pss) that a rank adds to what it has before there is a model: at most, from then
on ("peak") and in steps alone ("in steps"). "limit" is 1/W of parameters, gradients and both states of AdamW, plus
the largest unit.
"""
import contextlib
import pathlib
import statistics
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent / name) for name in ("step", "ddp_step", "tasks", "../tests/python/support")]
import memory  # noqa: E402
import turns  # noqa: E402
from missing import Missing  # noqa: E402
from network_namespaces import TwoMachines  # noqa: E402
from tasks import Block, make_task  # noqa: E402

WAYS = {
    "fully-shard": ("fullyshard-shm", "lockstep-adamw"),
    "fully-shard-gloo": ("fullyshard-gloo", "lockstep-adamw"),
    "ddp": ("lockstep-shm", "lockstep-adamw"),
    "fsdp2": ("fsdp2", "adamw-fused"),
}
WAYS_BETWEEN_MACHINES = {
    "fully-shard": ("fullyshard-hierarchical", "lockstep-adamw"),
    "hybrid-shard": ("hybridshard-hierarchical", "lockstep-adamw"),
    "fully-shard-gloo": ("fullyshard-gloo", "lockstep-adamw"),
    "ddp": ("lockstep-hierarchical", "lockstep-adamw"),
    "fsdp2": ("fsdp2", "adamw-fused"),
}
BYTES = 4
MB = 2**20


def limit_mb(model, ranks):
    """1/W of parameters, gradients and two states, plus the largest unit: a block, or what is outside of blocks."""
    module = make_task(model).model
    count = sum(parameter.numel() for parameter in module.parameters())
    blocks = [sum(parameter.numel() for parameter in block.parameters())
              for block in module.modules() if isinstance(block, Block)]
    return (4 * count / ranks + max(*blocks, count - sum(blocks))) * BYTES / MB


def measure_memory(arguments, model, way, machines):
    exchange, optimizer = arguments.known_ways[way]
    with tempfile.TemporaryDirectory() as folder:
        program = turns.start_program(arguments, folder, "pytorch" if exchange in turns.PYTORCH else "native",
                                      machines)
        try:
            before = sum(program.ask("memory")["mb"])
            peaks = []
            for steps in (1, 3):  # The first makes the model, too.
                watch = memory.PeakMemory(program)
                watch.start()
                program.ask(f"{model} {exchange} {optimizer} {steps}")
                peaks.append((watch.end() - before) / arguments.ranks)
        finally:
            program.close()
    return {"peak_mb": peaks[0], "in_steps_mb": peaks[1]}


def measure_steps(arguments, machines):
    """{(model, way): [ms, ...]}"""
    times = {}
    subjects = {way: arguments.known_ways[way] for way in arguments.ways}
    for model, way, _, answer in turns.take_turns(arguments, subjects, machines):
        times.setdefault((model, way), []).extend(us / 1e3 for us in answer["us"])
    return times


def measure(arguments, machines):
    rows = []
    times = measure_steps(arguments, machines)
    for model in arguments.models:
        limit = limit_mb(model, arguments.ranks)
        for way in arguments.ways:
            row = {"model": model, "way": way, "steps": len(times[model, way]),
                   "ms": statistics.median(times[model, way]), "limit_mb": limit}
            if (model, "fsdp2") in times:
                row["speedup_over_fsdp2"] = statistics.median(times[model, "fsdp2"]) / row["ms"]
            rows.append({**row, **measure_memory(arguments, model, way, machines)})
    return rows


def table_of(rows):
    lines = [f"{'model':10}{'way':18}{'ms':>10}{'vs FSDP2':>10}{'peak MB':>10}{'in steps':>10}{'limit':>8}"]
    for row in rows:
        faster = f"{row['speedup_over_fsdp2']:.2f}x" if "speedup_over_fsdp2" in row else "-"
        lines.append(f"{row['model']:10}{row['way']:18}{row['ms']:10.4g}{faster:>10}{row['peak_mb']:10.0f}"
                     f"{row['in_steps_mb']:10.0f}{row['limit_mb']:8.0f}")
    return "\n".join(lines)


def parse_arguments():
    parser = turns.make_parser(__doc__, models=["mingpt", "gpt124m"], rounds=5)
    parser.add_argument("--ways", type=turns.names,
                        help=f"of {', '.join(WAYS)}; with --cable of {', '.join(WAYS_BETWEEN_MACHINES)}")
    parser.add_argument("--cable", metavar="RATE", help="between two machines, as tc takes it: 10gbit")
    arguments = parser.parse_args()
    if arguments.cable and arguments.ranks % 2:
        parser.error("--cable needs an even number of --ranks")
    arguments.known_ways = WAYS_BETWEEN_MACHINES if arguments.cable else WAYS
    arguments.ways = arguments.ways or list(arguments.known_ways)
    turns.check_names(parser, "way", arguments.ways, arguments.known_ways)
    turns.check_names(parser, "model", arguments.models, ["mingpt", "gpt124m"])
    return arguments


def main():
    arguments = parse_arguments()
    try:
        with TwoMachines(arguments.cable) if arguments.cable else contextlib.nullcontext() as machines:
            rows = measure(arguments, machines)
    except Missing as missing:
        raise SystemExit(f"run.py: {missing}") from None
    print(table_of(rows))
    turns.write_json(arguments, "fully-shard", rows)


if __name__ == "__main__":
    main()
