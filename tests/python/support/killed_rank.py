"""A rank that is killed in the middle, for the tests of programs that go on after it."""
import os
import pathlib
import signal
import subprocess
import tempfile

import torch


def run_and_kill(command, when, program, rank=1, **popen):
    """Runs the command and kills one rank of the program when a line of the output has this text.
    Returns the exit code, the lines before, and those after."""
    before, after = [], []
    with subprocess.Popen([str(part) for part in command], text=True,
                          **{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL} | popen) as job:
        output, lines = job.stdout or job.stderr, before
        for line in output:
            lines.append(line.rstrip("\n"))
            if lines is before and when in line:
                os.kill(process_of(rank, program, job.pid), signal.SIGKILL)
                lines = after
    if lines is before:
        raise AssertionError(f"no line had '{when}': {before}")
    return job.returncode, before, after


def run_and_kill_each(command, victims, program, begins_with, kill_with=signal.SIGKILL, **popen):
    """Runs the command and kills these ranks one after the other, each in a step after a line that begins so: when
    those before it are replaced. Returns the exit code, the lines, and what went to stderr."""
    lines, left, begun = [], list(victims), 0
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen([str(part) for part in command], text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=errors, **popen) as job:
            for line in job.stdout:
                lines.append(line.rstrip("\n"))
                begun += line.startswith(begins_with)
                if left and line.startswith("step ") and begun == len(victims) - len(left) + 1:
                    os.kill(process_of(left.pop(0), program, job.pid), kill_with)
        errors.seek(0)
        said = errors.read()
    if left:
        raise AssertionError(f"ranks {left} were not killed: {lines}")
    return job.returncode, lines, said


def process_of(rank, program, ancestor):
    """The process of a rank of the program, below another."""
    program = os.path.realpath(program)
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            exe = os.readlink(f"/proc/{process}/exe")
            environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            if exe == program and f"RANK={rank}".encode() in environment and is_below(process, ancestor):
                return process
        except OSError:
            continue  # Gone in between, or not ours to look at.
    raise AssertionError(f"no process of rank {rank}")


def is_below(process, ancestor):
    while process > 1 and process != ancestor:
        status = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        process = int(status.rpartition(")")[2].split()[1])
    return process == ancestor


def assert_same_bits(test, ours, theirs):
    """Of two dictionaries of tensors."""
    test.assertEqual(ours.keys(), theirs.keys())
    for name, tensor in theirs.items():
        test.assertTrue(torch.equal(ours[name], tensor), name)
