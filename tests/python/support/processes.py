"""Which processes there are, and waiting for it."""

import os
import pathlib
import time

# A bound on what hangs, far above what anything here takes.
DEADLINE_S = 40


def wait_for(what, described, deadline_s=DEADLINE_S):
    """Returns what it returns once that is true. described: for the error at the deadline."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        result = what()
        if result:
            return result
        time.sleep(0.005)
    raise AssertionError(f"not within {deadline_s} s: {described()}")


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


def open_files(pid):
    """Each descriptor of a process that was not closed meanwhile, as {its path in /proc: what it refers to}."""
    found = {}
    for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[str(path)] = os.readlink(path)
        except FileNotFoundError:
            continue
    return found


def processes_with(text):
    """Those that run and have it in their environment or command line, as {pid: command line}."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        if pid == os.getpid():
            continue
        command = read(process / "cmdline")
        if command and (text in command or text in read(process / "environ")):
            found[pid] = command.replace(b"\0", b" ").decode()
    return found
