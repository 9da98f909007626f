#!/usr/bin/env python3
"""Times the all-reduce of other libraries beside Lockstep's: installs each from PyPI into a folder of its
own, compiles bench/peers/peer_all_reduce.cpp against it, and runs them in turns with
`lockstep bench all-reduce`, each with two ranks pinned one a processor.

    bench/peers/run.py --build=build/release --json=peers.json

The loop, the check of every sum and the labels near and far are those of `lockstep bench`.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ["bench/peers/peer_all_reduce.cpp", "lockstep/os/machine/affinity.cpp",
           "lockstep/os/machine/core_distance.cpp"]
# name: packages, flags of the compiler, flags of mpiexec, environment
PEERS = {
    "openmpi": (["openmpi"], ["-lmpi"], ["--allow-run-as-root", "--oversubscribe", "--bind-to",
                                         "none"], {}),
    "mpich": (["mpich"], ["-lmpi"], [], {}),
    "impi": (["impi-devel", "impi-rt"], ["-lmpi"], [], {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}),
    # Without offload the sum is done by the rank itself and not by a thread of the library, which
    # would want a processor of its own.
    "oneccl": (["oneccl-devel", "oneccl", "impi-devel", "impi-rt"],
               ["-DWITH_ONECCL", "-lccl", "-lmpi"], [],
               {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0", "CCL_WORKER_OFFLOAD": "0",
                "CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error"}),
}
SIZES = [4, 4096, 65536, 1048576, 4194304, 46758048, 134217728]


def prepare(name, folder):
    """Installs and compiles what is not there yet; returns the command that runs two ranks."""
    packages, flags, mpiexec_flags, _ = PEERS[name]
    prefix = folder / name
    if not (prefix / "installed").exists():
        print(f"==> installing {name} into {prefix}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", prefix], check=True)
        subprocess.run([prefix / "bin/pip", "install", "-q", *packages], check=True)
        (prefix / "installed").touch()
    program = prefix / "peer_all_reduce"
    includes = [f"-I{path}" for path in (ROOT, prefix / "include", prefix / "include/mpi")
                if path.exists()]
    libraries = [f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["g++", "-std=c++20", "-O2", *includes, *(ROOT / source for source in SOURCES),
                    "-o", program, *libraries, *flags, "-lpthread"], check=True)
    return [prefix / "bin/mpiexec", "-n", "2", *mpiexec_flags, program]


def run_peer(name, command, rounds, sample_ms, sizes, folder):
    """[{"bytes", "placement", "us": [...]}, ...]"""
    with tempfile.TemporaryDirectory() as scratch:
        prefix = folder / name
        environment = {**os.environ, **PEERS[name][3], "LD_LIBRARY_PATH": f"{prefix}/lib",
                       "I_MPI_ROOT": str(prefix), "CCL_ROOT": str(prefix),
                       "OPAL_PREFIX": str(prefix)}
        result = subprocess.run([*command, str(rounds), str(sample_ms), f"{scratch}/lines",
                                 *map(str, sizes)], env=environment, stdout=subprocess.PIPE,
                                text=True, timeout=600, check=True)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def run_lockstep(build, backends, sizes, rounds):
    command = [f"{build}/bin/lockstep", "bench", "all-reduce", f"--backends={backends}",
               f"--sizes={','.join(map(str, sizes))}", "--memory=shared,private",
               f"--rounds={rounds}", "--json"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    samples = []
    for row in json.loads(result.stdout)["rows"]:
        name = f"lockstep {row['backend']} {row['memory']}"
        samples.append((name, row["bytes"], row["placement"], [row["us"]]))
    return samples


def table_of(rows, sizes):
    lines = []
    for placement in ("near", "far", "mixed", "unknown"):
        names = sorted({row["peer"] for row in rows if row["placement"] == placement})
        if not names:
            continue
        lines.append(f"\nprocessors {placement}: median us\n" + f"{'':28}" +
                     "".join(f"{size:>12}" for size in sizes))
        for name in names:
            cells = {row["bytes"]: row["us"] for row in rows
                     if row["peer"] == name and row["placement"] == placement}
            lines.append(f"{name:28}" + "".join(
                f"{cells[size]:12.4g}" if size in cells else f"{'-':>12}" for size in sizes))
    return "\n".join(lines)


def main():
    split = lambda text: text.split(",")  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="where Lockstep was built")
    parser.add_argument("--folder", default="build/peers", help="where the peers are installed")
    parser.add_argument("--peers", type=split, default=list(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--backends", default="shm,gloo", help="Lockstep's (default shm,gloo)")
    parser.add_argument("--sizes", type=split, default=[str(size) for size in SIZES])
    parser.add_argument("--turns", type=int, default=3, help="launches of each (default 3)")
    parser.add_argument("--json", help="write all figures to this file")
    arguments = parser.parse_args()
    for name in arguments.peers:
        if name not in PEERS:
            parser.error(f"there is no peer '{name}'; choose of {', '.join(PEERS)}")
    sizes = sorted(map(int, arguments.sizes))
    folder = pathlib.Path(arguments.folder).resolve()
    commands = {}
    for name in arguments.peers:
        try:
            commands[name] = prepare(name, folder)
        except subprocess.CalledProcessError as error:
            print(f"run.py: {name} is left out: {error}", file=sys.stderr)

    times = {}  # (peer, bytes, placement): [us, ...]
    for _ in range(arguments.turns):
        for name, command in commands.items():
            try:
                samples = run_peer(name, command, 3, 20, sizes, folder)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"run.py: {name} failed in this turn: {error}", file=sys.stderr)
                continue
            for sample in samples:
                key = name, sample["bytes"], sample["placement"]
                times.setdefault(key, []).append(statistics.median(sample["us"]))
        for name, size, placement, values in run_lockstep(arguments.build, arguments.backends, sizes,
                                                          3):
            times.setdefault((name, size, placement), []).extend(values)
    rows = [{"peer": peer, "bytes": size, "placement": placement, "us": statistics.median(values),
             "samples": len(values)} for (peer, size, placement), values in sorted(times.items())]
    print(table_of(rows, sizes))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "peers", "ranks": 2, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
