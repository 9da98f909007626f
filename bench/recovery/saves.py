#!/usr/bin/env python3
"""Does harm to snapshots and counts what is silent or cannot be loaded afterwards: processes killed in the middle
of a save, every bit of a file flipped, disks that are full. Beside it the same kills of Python's torch.save, onto
one path, as training scripts have it.

    bench/recovery/saves.py --binaries=build/release/bin --kills=1000 --json=saves.json

What is loaded is compared bit for bit with what a formula gives for its step.
"""
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launch"))
from jobs import machine, make_parser, write_figures  # noqa: E402

LONGEST_S = 3600


def harm(arguments, what, *numbers):
    """What the program counted."""
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_", dir=arguments.folder) as folder:
        done = subprocess.run([str(arguments.binaries / "save_faults"), what, folder, *map(str, numbers)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LONGEST_S,
                              check=False)
        if done.returncode != 0:
            sys.exit(f"{what}: {done.stderr[-2000:]}")
        return {name: int(number) for name, number in map(str.split, done.stdout.splitlines())}


def kill_torch_saves(arguments):
    """The same with torch.save(state, path), and what is there loaded in a process of its own."""
    import torch
    torch.set_num_threads(1)
    randomness = random.Random(arguments.seed)
    found = {"kills": 0, "silent": 0, "unloadable": 0}
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_", dir=arguments.folder) as folder:
        path = os.path.join(folder, "snapshot.pt")
        state = {"step": 0, "weight": torch.zeros(arguments.bytes // 4)}

        def save(step):
            state["step"] = step
            state["weight"].fill_(step)
            torch.save(state, path)

        save(1)
        start = time.monotonic()
        save(2)
        save_s = time.monotonic() - start
        while found["kills"] < arguments.kills:
            ready, said = os.pipe()
            saver = os.fork()
            if saver == 0:
                os.write(said, b".")
                for step in range(3, 10**9):
                    save(step)
            os.close(said)
            os.read(ready, 1)
            os.close(ready)
            time.sleep(randomness.uniform(0, 2 * save_s))
            os.kill(saver, signal.SIGKILL)
            os.waitpid(saver, 0)
            found["kills"] += 1
            try:
                loaded = torch.load(path, weights_only=True)
                found["silent"] += not bool((loaded["weight"] == loaded["step"]).all())
            except Exception:  # noqa: BLE001: it names many
                found["unloadable"] += 1
                save(2)
    return found


def main():
    parser = make_parser(__doc__, "save_faults")
    parser.add_argument("--kills", type=int, default=1000, help="in the middle of a save (default 1000)")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the weights (default 1 MiB)")
    parser.add_argument("--flip-every", type=int, default=1, help="each of so many bits (default each)")
    parser.add_argument("--full-every", type=int, default=16, help="bytes from disk to disk (default 16)")
    parser.add_argument("--folder", help="on the disk to be tried (default that of temporary files)")
    parser.add_argument("--without-torch", action="store_true", help="Lockstep alone")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 32))
    parser.add_argument("--quick", action="store_true", help="40 kills, one bit of 101, without torch")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.kills, arguments.flip_every, arguments.full_every = 40, 101, 256
        arguments.without_torch = True
    print(f"seed {arguments.seed}")
    before = machine()
    rows = {"kills in a save": harm(arguments, "kills", arguments.kills, arguments.seed, arguments.bytes),
            "bits flipped": harm(arguments, "flips", arguments.flip_every),
            "disks full": harm(arguments, "full", arguments.full_every)}
    if not arguments.without_torch:
        rows["torch.save, kills"] = kill_torch_saves(arguments)
    print(f"{'':20}{'harm':>10}{'silent':>10}{'unloadable':>12}")
    for name, row in rows.items():
        count = row.get("kills") or row.get("flips") or row.get("disks")
        print(f"{name:20}{count:10}{row['silent']:10}{row['unloadable']:12}")
    write_figures(arguments.json, benchmark="saves", machine=before, seed=arguments.seed, rows=rows)
    ours = [row for name, row in rows.items() if not name.startswith("torch")]
    bad = sum(row["silent"] + row["unloadable"] + row.get("lost", 0) + row.get("left", 0) for row in ours)
    if bad:
        sys.exit(f"{bad} silent, unloadable, lost or left: {rows}")


if __name__ == "__main__":
    main()
