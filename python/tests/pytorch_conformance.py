"""Runs PyTorch's own tests of backends, from the installed wheel and unmodified, over `lockstep` and over Gloo.

usage: pytorch_conformance.py [--ranks=2] [--table=FILE] [--expect=PASS/FAIL/SKIP] [--alone] [PATTERN...]

torch/testing/_internal/distributed/distributed_test.py, with BACKEND=lockstep and BACKEND=gloo in one run; a PATTERN chooses
tests by a part of their name. Prints what differs; --table writes the counts and each difference as Markdown. The exit code
is 1 if a test that Gloo passes fails over lockstep and is not listed in EXPLAINED, and if the counts of lockstep are not those
of --expect. --alone: not over Gloo. Needs the packages expecttest and numpy.
"""

import argparse
import collections
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

# Tests that Gloo passes and lockstep does not: why.
EXPLAINED = {
    "test_ddp_logging_data_cpu": "PyTorch calls each backend that is not its own `custom` in this log; the test expects its name",
}


def run_tests(backend, patterns):
    """In a process of its own: the suite reads BACKEND when it is imported."""
    import torch
    from torch.testing._internal.common_distributed import DistTestCases

    if backend == "lockstep":
        import lockstep_torch  # noqa: F401

        # The suite asks this table which backends have a feature, when it is imported.
        for feature, backends in DistTestCases.backend_feature.items():
            if "gloo" in backends or feature == "plugin":
                backends.add("lockstep")
    from torch.testing._internal.distributed import distributed_test

    class PyTorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Forked, not spawned: a test takes a second less.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    # By its name in this module, where the processes of a test find it.
    globals()["PyTorchSuite"] = PyTorchSuite
    PyTorchSuite.__module__ = __name__
    names = [
        name
        for name in unittest.TestLoader().getTestCaseNames(PyTorchSuite)
        if not patterns or any(pattern in name for pattern in patterns)
    ]

    class Result(unittest.TestResult):
        def outcome(self, test, word, text=""):
            print(f"OUTCOME {test.id().rsplit('.', 1)[1]} {word} {text}", flush=True)

        def addSuccess(self, test):
            self.outcome(test, "pass")

        def addSkip(self, test, reason):
            self.outcome(test, "skip", reason.replace("\n", " "))

        def addFailure(self, test, error):
            lines = self._exc_info_to_string(error, test).strip().splitlines()
            self.outcome(test, "fail", " | ".join(line.strip() for line in lines[-12:])[:1500])

        addError = addFailure

    suite = unittest.TestSuite(PyTorchSuite(name) for name in names)
    suite.run(Result())


def outcomes_of(backend, arguments):
    environment = dict(
        os.environ, BACKEND=backend, WORLD_SIZE=str(arguments.ranks), OMP_NUM_THREADS="1", INIT_METHOD="env://",
        MASTER_ADDR="127.0.0.1",
    )
    with tempfile.TemporaryDirectory() as folder:
        environment["TEMP_DIR"] = folder
        command = [sys.executable, os.path.abspath(__file__), "--inner", backend, *arguments.patterns]
        with open(f"{folder}/log", "w+") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
            log.seek(0)
            text = log.read()
    outcomes = {}
    for line in text.splitlines():
        if line.startswith("OUTCOME "):
            _, name, word, *reason = line.split(" ", 3)
            outcomes[name] = (word, reason[0] if reason else "")
    if not outcomes:
        raise SystemExit(f"no test of {backend} ran:\n{text[-4000:]}")
    return outcomes


def count(outcomes):
    counts = collections.Counter(word for word, _ in outcomes.values())
    return f"{counts['pass']}/{counts['fail']}/{counts['skip']}"


def main():
    if sys.argv[1:2] == ["--inner"]:
        return run_tests(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--table")
    parser.add_argument("--expect", help="numbers of tests that pass, fail and are skipped over lockstep")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("patterns", nargs="*")
    arguments = parser.parse_args()
    if importlib.util.find_spec("expecttest") is None:  # PyTorch's suites import it.
        print("the package expecttest is not installed")
        return 0
    backends = ("lockstep",) if arguments.alone else ("gloo", "lockstep")
    results = {backend: outcomes_of(backend, arguments) for backend in backends}
    lines = [f"{arguments.ranks} ranks, pass/fail/skip: " + ", ".join(f"{b} {count(r)}" for b, r in results.items())]
    gloo = results.get("gloo")
    unexplained = []
    for name, (word, reason) in sorted(results["lockstep"].items()):
        gloo_word = gloo.get(name, ("missing", ""))[0] if gloo else "pass"
        if word == gloo_word or gloo_word != "pass" and word != "fail":
            continue
        why = EXPLAINED.get(name, reason).rstrip(".")
        lines.append(f"- `{name}`: {f'gloo {gloo_word}, ' if gloo else ''}lockstep {word}: {why}")
        if gloo_word == "pass" and word == "fail" and name not in EXPLAINED:
            unexplained.append(name)
    print("\n".join(lines), flush=True)
    if arguments.table:
        with open(arguments.table, "a") as table:
            table.write("\n".join(lines) + "\n")
    if arguments.expect and arguments.expect != count(results["lockstep"]):
        print(f"expected over lockstep: {arguments.expect}")
        return 1
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
