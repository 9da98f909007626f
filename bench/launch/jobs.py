"""What the benchmarks of the launcher share: jobs that are started, heard through a pipe and ended."""
import argparse
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What nothing here takes on a machine that is not stuck.
PATIENCE_S = 60
MARK = "LOCKSTEP_BENCH_JOB"


class TookTooLong(Exception):
    """A job did not do in time what it was started for."""


def seconds_now():
    return time.monotonic_ns() / 1e9


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def find_torchrun(given):
    """The path of torchrun, or None."""
    if given == "none":
        return None
    for candidate in [given] if given else [ROOT / ".venv/bin/torchrun", shutil.which("torchrun")]:
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    if given:
        sys.exit(f"there is no program {given}; give the path of torchrun, or none")
    return None


def marked_processes(line):
    """The processes with this line in their environment, those that end at this moment left out."""
    found = []
    for folder in os.scandir("/proc"):
        if folder.name.isdigit():
            with contextlib.suppress(OSError), open(f"{folder.path}/environ", "rb") as file:
                if line.encode() in file.read().split(b"\0"):
                    found.append(int(folder.name))
    return found


class Pipe:
    """A named pipe that any number of workers write lines to."""

    def __init__(self, folder, name="lines"):
        self.path = os.path.join(folder, name)
        os.mkfifo(self.path)
        # For both directions, so that it has a writer and a reader throughout.
        self.file = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.rest = b""
        self.lines = []

    def read(self, deadline_s):
        """The next line as a list of words; None when there was none until the deadline."""
        while not self.lines:
            left_s = deadline_s - seconds_now()
            if left_s <= 0 or not select.select([self.file], [], [], left_s)[0]:
                return None
            *lines, self.rest = (self.rest + os.read(self.file, 1 << 16)).split(b"\n")
            self.lines = [line.decode().split() for line in reversed(lines)]
        return self.lines.pop()

    def expect(self, count, event):
        """So many lines that begin with `event`; others stay for later."""
        deadline_s, found, others = seconds_now() + PATIENCE_S, [], []
        while len(found) < count:
            line = self.read(deadline_s)
            if line is None:
                raise TookTooLong(f"{len(found)} of {count} workers wrote '{event}'")
            (found if line[0] == event else others).append(line)
        self.lines += reversed(others)
        return found

    def close(self):
        os.close(self.file)


class Hold:
    """A named pipe on which launch_workers wait until it is let go."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "hold")
        os.mkfifo(self.path)
        self.file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def let_go(self):
        os.close(self.file)


class Job:
    """A launcher and all that it starts, which end with the block."""

    def __init__(self, command, folder, **variables):
        self.mark = uuid.uuid4().hex
        self.log_path = os.path.join(folder, f"log-{self.mark}")
        inherited = {name: value for name, value in os.environ.items()
                     if not name.startswith(("LOCKSTEP_", "PET_", "TORCHELASTIC_"))}
        environment = inherited | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | variables
        environment[MARK] = self.mark
        with open(self.log_path, "wb") as log:
            self.started_ns = time.monotonic_ns()
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env=environment,
                                            start_new_session=True)
        self.watch = os.pidfd_open(self.process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            # Killed with its guard, which has the mark, too, it would leave its directory.
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.watch)
        # torchrun's workers outlive it.
        for pid in marked_processes(f"{MARK}={self.mark}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self):
        return pathlib.Path(self.log_path).read_text(encoding="utf-8", errors="replace")

    def end_ns(self, patience_s=PATIENCE_S):
        """When the launcher ended, to a millisecond's tenth; it must have succeeded."""
        # Popen.wait(timeout) looks every 50 ms only.
        poll = select.poll()
        poll.register(self.watch, select.POLLIN)
        ended = poll.poll(patience_s * 1e3)
        instant_ns = time.monotonic_ns()
        if not ended:
            raise TookTooLong(f"the launcher did not end:\n{self.log()}")
        if self.process.wait() != 0:
            raise RuntimeError(f"the launcher ended with {self.process.returncode}:\n{self.log()}")
        return instant_ns


@contextlib.contextmanager
def scratch():
    """A folder with a pipe in it."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        pipe = Pipe(folder)
        try:
            yield folder, pipe
        finally:
            pipe.close()


def percentile(values, share):
    """The least of the values that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def file_to_write(text):
    """For argparse, so that a path that cannot be written is known before and not after the measurements."""
    if text != "-" and not os.access(pathlib.Path(text).resolve().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: its folder is not there, or may not be written to")
    return text


def make_parser(description, programs):
    """With what all benchmarks take. `programs`: what they run."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=lambda text: pathlib.Path(text).resolve(),
                        default=ROOT / "build/release/bin", help=f"folder of {programs} (default build/release/bin)")
    parser.add_argument("--json", type=file_to_write, help="write all figures to this file")
    return parser


def write_figures(path, **figures):
    """As JSON; without a path nowhere."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


def machine():
    """What else this machine did: figures of a busy one are to be read as ratios."""
    return {"processors": len(os.sched_getaffinity(0)), "load_average": os.getloadavg()[0]}
