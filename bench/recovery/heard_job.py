"""A job that is heard through its workers' lines, each of which begins with a pid."""
import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import uuid

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from jobs import MARK, PATIENCE_S, marked_processes, seconds_now  # noqa: E402


class HeardJob:
    """A launcher; what its workers say goes to note(pid, what, words), and what it says itself, where that comes to
    stdout too, to note_launcher(line)."""

    def __init__(self, command, **variables):
        self.mark = uuid.uuid4().hex
        environment = os.environ | {"OMP_NUM_THREADS": "1", MARK: self.mark} | variables
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.log, env=environment)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.watch = os.pidfd_open(self.process.pid)
        self.ended_s = None  # when the launcher ended
        self.rest = b""

    def note(self, pid, what, words):
        raise NotImplementedError

    def note_launcher(self, line):
        pass

    def read(self, deadline_s):
        """Takes note of what was said; false when nothing was until the deadline."""
        left_s = deadline_s - seconds_now()
        ready = select.select([self.process.stdout, self.watch], [], [], left_s)[0] if left_s > 0 else []
        if self.watch in ready:
            self.ended_s = self.ended_s or seconds_now()
        if self.process.stdout not in ready:
            return False
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if not line[:1].isdigit():
                self.note_launcher(line.decode())
                continue
            pid, what, *words = line.decode().split()
            self.note(int(pid), what, words)
        return bool(data)

    def go_on_until(self, condition, patience_s):
        deadline_s = seconds_now() + patience_s
        while not condition():
            if not self.read(deadline_s):
                return condition()
        return True

    def listen(self, seconds):
        self.go_on_until(lambda: False, seconds)

    def end(self, patience_s=PATIENCE_S):
        """Its exit code, once it has ended by itself; None when it has not."""
        deadline_s = seconds_now() + patience_s
        while self.read(deadline_s):
            pass
        # Its workers' lines may end a moment before it.
        if not self.ended_s and select.select([self.watch], [], [], max(0, deadline_s - seconds_now()))[0]:
            self.ended_s = seconds_now()
        return self.process.wait() if self.ended_s else None

    def processes(self):
        """All that it started and that still run, the launcher among them."""
        return marked_processes(f"{MARK}={self.mark}")

    def text(self):
        self.log.seek(0)
        return self.log.read()[-3000:]

    def close(self):
        if self.process.poll() is None:
            # Killed with its guard, which has the mark, too, it would leave its directory.
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self.process.kill()
        self.process.wait()
        # torchrun's workers outlive it.
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.stdout.close()
        os.close(self.watch)
        self.log.close()
