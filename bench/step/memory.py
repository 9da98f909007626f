#!/usr/bin/env python3
"""Measures the memory of a data-parallel job with AdamW, from the start of its ranks to the end of their fifth
step: the peak of the sum of the ranks' proportional set sizes (Pss in /proc/PID/smaps_rollup).

    bench/step/memory.py --build=build/release --ranks=2 --json=FILE

A job for each way, one after the other. Run it by a Python that has torch. The model gpt124m, 124 million parameters,
takes 6 GB with 2 ranks of PyTorch and 12 GB with 4.
"""
import contextlib
import pathlib
import sys
import tempfile
import threading

import run as step
from run import turns

BETWEEN_LOOKS_S = 0.02


def descendants_of(pid):
    with contextlib.suppress(OSError):
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
            yield child
            yield from descendants_of(child)


def ranks_of(program):
    """The processes that serve commands: their last argument is a pipe, as the launchers' is."""
    for launcher in program.processes:
        for pid in descendants_of(launcher.pid):
            with contextlib.suppress(OSError):
                arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                if arguments[-1] == launcher.args[-1].encode():
                    yield pid


def pss_mb(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0)
    return 0


class PeakMemory(threading.Thread):
    """Looks at the ranks again and again."""

    def __init__(self, program):
        super().__init__(daemon=True)
        self.program = program
        self.is_over = threading.Event()
        self.peak_mb = 0

    def run(self):
        while not self.is_over.wait(BETWEEN_LOOKS_S):
            self.peak_mb = max(self.peak_mb, sum(map(pss_mb, ranks_of(self.program))))

    def end(self):
        self.is_over.set()
        self.join()
        return self.peak_mb


def measure(arguments, model, way):
    exchange, optimizer = step.WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        program = turns.start_program(arguments, folder, "pytorch" if exchange in turns.PYTORCH else "native")
        try:
            memory = PeakMemory(program)
            memory.start()
            program.ask(f"{model} {exchange} {optimizer} 1")
            peak_mb = memory.end()
            at_end_mb = sum(map(pss_mb, ranks_of(program)))
        finally:
            program.close()
    return {"model": model, "way": way, "peak_mb": peak_mb, "at_end_mb": at_end_mb}


def table_of(rows):
    lines = [f"{'model':10}{'way':17}{'peak MB':>10}{'at the end':>12}{'of pytorch-fused':>18}"]
    peaks = {(row["model"], row["way"]): row["peak_mb"] for row in rows}
    for row in rows:
        pytorch = peaks.get((row["model"], "pytorch-fused"))
        share = f"{row['peak_mb'] / pytorch:.2f} x" if pytorch else "-"
        lines.append(f"{row['model']:10}{row['way']:17}{row['peak_mb']:10.0f}{row['at_end_mb']:12.0f}{share:>18}")
    return "\n".join(lines)


def parse_arguments():
    parser = turns.make_parser(__doc__, models=["gpt124m"], rounds=None)
    parser.add_argument("--ways", type=turns.names, default=["one-copy", "replicas", "pytorch-fused"],
                        help=f"of {', '.join(step.WAYS)}")
    arguments = parser.parse_args()
    turns.check_names(parser, "way", arguments.ways, step.WAYS)
    turns.check_names(parser, "model", arguments.models, turns.STEPS)
    return arguments


def main():
    arguments = parse_arguments()
    rows = [measure(arguments, model, way) for model in arguments.models for way in arguments.ways]
    print(table_of(rows))
    turns.write_json(arguments, "memory", rows)


if __name__ == "__main__":
    sys.exit(main())
