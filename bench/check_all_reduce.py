"""The short form of `lockstep bench all-reduce` for CI: what it reports must have its documented shape,
and the shared-memory backend must be far ahead of gloo, by margins that a busy machine leaves intact.
The command itself checks every sum exactly.

    check_all_reduce.py LOCKSTEP BACKENDS
"""
import json
import subprocess
import sys

SIZES = [4, 4096, 65536, 1048576, 4194304]
# What a quiet machine gives is five to ten times more: docs/performance.md.
LEAST_SPEEDUP_IN_PLACE = {4: 10, 4096: 10, 65536: 6, 1048576: 2, 4194304: 4}
LEAST_SPEEDUP_PRIVATE = {4: 10, 4096: 10, 65536: 2.5, 1048576: 1, 4194304: 1.5}


def run(lockstep, *arguments, exit_code=0):
    command = [lockstep, "bench", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == exit_code, (command, result.returncode, result.stderr)
    return result


def check_command_line(lockstep):
    assert "lockstep bench all-reduce" in run(lockstep, "--help").stdout
    assert "--sample-ms" in run(lockstep, "all-reduce", "--help").stdout
    for wrong in (["all-reduce", "--sizes=3"], ["all-redcue"], ["all-reduce", "--nproc-per-node=0"]):
        message = run(lockstep, *wrong, exit_code=2).stderr
        assert message.startswith("lockstep: ") and message.count("\n") == 1, message


def check_rows(rows, backends, memory_by_backend):
    for row in rows:
        assert row["backend"] in backends, row
        assert row["memory"] in memory_by_backend[row["backend"]], row
        assert row["bytes"] in SIZES, row
        assert row["placement"] in ("near", "far", "mixed", "unknown"), row
        assert 0 < row["us_min"] <= row["us"] <= row["us_p90"], row
        assert row["calls"] >= 3, row
    found = {(row["backend"], row["memory"], row["bytes"]) for row in rows}
    wanted = {(backend, memory, size) for backend in backends
              for memory in memory_by_backend[backend] for size in SIZES}
    assert found == wanted, (found, wanted)


def check_speedups(rows):
    """Compares the fastest calls: a busy machine may take the processor from ranks in most of the others."""
    gloo = {(row["placement"], row["bytes"]): row["us_min"] for row in rows if row["backend"] == "gloo"}
    for row in rows:
        if row["backend"] != "shm" or "speedup" not in row or row["placement"] == "mixed":
            continue
        in_place = row["memory"] == "shared"
        least = (LEAST_SPEEDUP_IN_PLACE if in_place else LEAST_SPEEDUP_PRIVATE)[row["bytes"]]
        speedup = gloo[row["placement"], row["bytes"]] / row["us_min"]
        assert speedup >= least, f"{speedup:.2f}, less than {least} x gloo: {row}"


def main():
    lockstep, backends = sys.argv[1], sys.argv[2].split(",")
    check_command_line(lockstep)
    report = json.loads(run(
        lockstep, "all-reduce", "--nproc-per-node=2", f"--backends={','.join(backends)}",
        f"--sizes={','.join(map(str, SIZES))}", "--memory=shared,private", "--rounds=7", "--json",
    ).stdout)
    assert report["benchmark"] == "all-reduce" and report["ranks"] == 2, report
    memory = {name: ["shared", "private"] if name == "shm" else ["private"] for name in backends}
    check_rows(report["rows"], backends, memory)
    check_speedups(report["rows"])
    limits = {(row["limit"], row["bytes"]) for row in report["limits"]}
    assert limits == {(name, size) for name in ("kernel", "copy", "add", "hand-over") for size in SIZES}, limits
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
