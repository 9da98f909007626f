"""A process that a test starts itself: a rank without a launcher, or a launcher."""

import json
import os
import subprocess
import tempfile
import threading

# A bound on what hangs, far above what anything takes.
DEADLINE_S = 100


def place(rank, world_size, port, **environment):
    """The environment that puts a process at a rank of a job on this machine."""
    return dict(RANK=rank, WORLD_SIZE=world_size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=world_size,
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **environment)


class RankProcess:
    """A process. Its pipes are closed and it is gone when the test ends."""

    def __init__(self, test, command, environment, **popen):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.error_file = os.path.join(folder.name, "error.json")
        environment = {"TORCHELASTIC_ERROR_FILE": self.error_file} | environment
        self.process = subprocess.Popen(
            [str(part) for part in command],
            env=inherited | {k: str(v) for k, v in environment.items()},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen)
        self.test = test
        test.addCleanup(self.end)

    @property
    def pid(self):
        return self.process.pid

    def end(self):
        self.process.kill()
        self.process.communicate()

    def read_line(self):
        """Empty if it has ended; at the deadline this ends it."""
        deadline = threading.Timer(DEADLINE_S, self.process.kill)
        deadline.start()
        try:
            return self.process.stdout.readline().strip()
        finally:
            deadline.cancel()

    def wait_for_line(self, word):
        line = self.read_line()
        if line != word:
            self.process.kill()
            raise AssertionError(f"said {line!r} instead of {word!r}: {self.process.stderr.read()}")

    def say(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def error(self):
        """The error that ended it, as its error file has it: the type's name, and the fields (ErrorFields)."""
        if not os.path.exists(self.error_file):
            return "no error", {}
        with open(self.error_file, encoding="utf-8") as file:
            message = json.load(file)["message"]
        return message["message"].partition(":")[0], message["extraInfo"]["fields"]

    def expect_error(self, name, code=1, text_in=None, **fields):
        """It ends with one line and an error of type `name`, whose fields have these values (None: it has no such
        field); returns all of them."""
        status, _, errors = RankProcess.finish(self, text_in)
        error, found = self.error()
        self.test.assertEqual((status, error, {field: found.get(field) for field in fields}),
                              (code, name, fields), errors)
        self.test.assertEqual(errors.count("\n"), 1, f"more than one line: {errors}")
        return found

    def finish(self, text_in=None):
        """The exit code, what it wrote to stdout after the lines read, and to stderr."""
        output, errors = self.process.communicate(text_in, timeout=DEADLINE_S)
        return self.process.returncode, output, errors
