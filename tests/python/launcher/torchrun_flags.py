#!/usr/bin/env python3
"""`lockstep run` takes what torchrun takes: every flag that the installed torchrun has, in each of its
spellings and abbreviations, and from the environment; what workers are given; events; filtered logs.

    torchrun_flags.py <lockstep>
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

LOCKSTEP = sys.argv[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
DEADLINE_S = 120

FLAGS = [action for action in get_args_parser()._actions
         if action.option_strings and action.dest != "help"]

# A value of each flag that has one, as people give it.
VALUES = {
    "nnodes": "1:1", "nproc_per_node": "1", "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0",
    "rdzv_id": "job", "rdzv_conf": "join_timeout=5,timeout=3", "max_restarts": "3", "monitor_interval": "0.5",
    "start_method": "fork", "event_log_handler": "null", "role": "trainer", "log_dir": "logs",
    "redirects": "0:1,1:2", "tee": "3", "local_ranks_filter": "0,1", "duplicate_stdout_filters": "a,b",
    "duplicate_stderr_filters": "a,,b", "node_rank": "0", "master_addr": "127.0.0.1", "master_port": "0",
    "local_addr": "127.0.0.1", "logs_specs": "default", "numa_binding": "node",
    "signals_to_handle": "SIGTERM,SIGUSR1", "shutdown_timeout": "5"}

# From the environment, each with a value that cannot work or whose effect can be seen, what else is given,
# and what is then written.
VARIABLES = {
    "nnodes": ("x", "", "--nnodes"), "nproc_per_node": ("x", "", "--nproc-per-node"),
    "rdzv_backend": ("x", "", "--rdzv-backend"), "rdzv_endpoint": ("[", "", "--rdzv-endpoint"),
    "rdzv_id": ("seen", "", "TORCHELASTIC_RUN_ID=seen"), "rdzv_conf": ("x", "", "--rdzv-conf"),
    "standalone": ("1", "--nnodes=2", "--standalone"), "max_restarts": ("x", "", "--max-restarts"),
    "monitor_interval": ("x", "", "--monitor-interval"), "start_method": ("x", "", "--start-method"),
    "event_log_handler": ("x", "", "--event-log-handler"), "role": ("seen", "", "ROLE_NAME=seen"),
    "module": ("1", "--no-python", "--module"), "no_python": ("1", "-m", "--no-python"),
    "run_path": ("1", "", "python3: can't open file|cannot read env"),
    "log_dir": ("/dev/null/x", "", "/dev/null/x"), "redirects": ("x", "", "--redirects"),
    "tee": ("x", "", "--tee"), "local_ranks_filter": ("x", "", "--local-ranks-filter"),
    "duplicate_stdout_filters": ("RANK=0", "--tee=1", "filtered_stdout.log"),
    "duplicate_stderr_filters": ("RANK=0", "--tee=2", "filtered_stderr.log"),
    "node_rank": ("7", "", "--node-rank"), "master_addr": ("no.such.host.invalid", "", "no.such.host.invalid"),
    "master_port": ("x", "", "--master-port"), "local_addr": ("no.such.host.invalid", "", "no.such.host.invalid"),
    "signals_to_handle": ("x", "", "--signals-to-handle"), "shutdown_timeout": ("x", "", "--shutdown-timeout"),
    "virtual_local_rank": ("1", "", "CUDA_VISIBLE_DEVICES=0")}

# Where `lockstep run --help` shows a default that argparse does not: torchrun finds it later.
LATER_DEFAULTS = {"nnodes": "1", "master_port": "29500", "shutdown_timeout": "30"}


def environment(**variables):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PET_", "OMP_", "TORCHELASTIC", "CUDA_", "LOCKSTEP_"))}
    return kept | variables


def launch(launcher, *arguments, folder=None, **variables):
    return subprocess.run([*launcher, *arguments], capture_output=True, text=True, timeout=DEADLINE_S,
                          check=False, cwd=folder, env=environment(**variables))


def run(*arguments, **variables):
    return launch([LOCKSTEP, "run"], *arguments, **variables)


def takes_value(action):
    return action.nargs != 0


def lockstep_name(action):
    return action.option_strings[-1].lstrip("-").replace("_", "-")


class EveryFlag(unittest.TestCase):
    def test_the_tables_here_are_complete(self):
        self.assertEqual({action.dest for action in FLAGS if takes_value(action)}, VALUES.keys())
        self.assertEqual({action.dest for action in FLAGS if isinstance(action, (env, check_env))},
                         VARIABLES.keys())

    def test_is_taken_in_every_spelling(self):
        with tempfile.TemporaryDirectory() as folder:
            for action in FLAGS:
                for name in action.option_strings:
                    if takes_value(action):
                        given = [f"{name}={VALUES[action.dest]}"], [name, VALUES[action.dest]]
                    else:
                        given = ([name],)
                    for flag in given:
                        with self.subTest(flag=flag):
                            program = "this" if {"-m", "--module"} & {name} else "true"
                            variables = {"PYTHON_EXEC": "/bin/true"}
                            if name.startswith("--run"):
                                program = __file__
                            done = run(*flag, program, folder=folder, **variables)
                            self.assertEqual(done.returncode, 0, done.stderr)

    def resolved(self, beginning, has_value):
        """The flag that an abbreviation stands for, told by the refusal of a value that cannot be."""
        err = run(beginning + ("=" if has_value else "=1"), "true").stderr
        match = re.match(r"lockstep(?: error)?: --(\S+) (?:needs a value|takes no value)", err)
        return match[1] if match else err

    def test_is_taken_by_every_beginning_that_is_its_own(self):
        """As newer argparse does: two spellings of one flag do not make its beginning ambiguous."""
        owners = {name: action for action in FLAGS for name in action.option_strings
                  if name.startswith("--")}
        owners["--help"] = None
        beginnings = {name[:end] for name in owners for end in range(3, len(name) + 1)}
        tried = 0
        for beginning in sorted(beginnings):
            meant = {id(action): action for name, action in owners.items() if name.startswith(beginning)}
            action = owners.get(beginning) or next(iter(meant.values()))
            if action is None or (len(meant) > 1 and beginning not in owners):
                continue
            tried += 1
            with self.subTest(beginning=beginning):
                self.assertEqual(self.resolved(beginning, takes_value(action)), lockstep_name(action))
        self.assertGreater(tried, 300)

    def test_letters_are_taken_as_argparse_takes_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for flags in (["-t3"], ["-t=3"], ["-t", "3"], ["-r0:1,1:2"], ["-mt3"], ["-mt", "3"]):
                get_args_parser().parse_args([*flags, "this"])
                done = run(*flags, "true", folder=folder, PYTHON_EXEC="/bin/true")
                self.assertEqual(done.returncode, 0, (flags, done.stderr))

    def test_has_its_variable(self):
        for dest, (value, also, expected) in VARIABLES.items():
            with self.subTest(variable=dest), tempfile.TemporaryDirectory() as folder:
                extra = [also] if also else []
                if dest.startswith("duplicate"):
                    extra.append("--log-dir=logs")
                done = run(*extra, "env", folder=folder, **{f"PET_{dest.upper()}": value})
                files = " ".join(str(path) for path in pathlib.Path(folder).rglob("*"))
                self.assertRegex(done.stdout + done.stderr + files, expected.replace("[", r"\["))

    def test_a_variable_may_say_no(self):
        for action in FLAGS:
            if isinstance(action, check_env):
                name = f"PET_{action.dest.upper()}"
                done = run("--nnodes=1", "env", **{name: "0"})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("CUDA_VISIBLE_DEVICES", done.stdout)

    def test_has_the_default_that_help_shows(self):
        shown = {}
        name = None
        for line in run("--help").stdout.splitlines():
            if match := re.match(r"  (?:-\w, )?--([\w-]+)", line):
                name = match[1].replace("-", "_")
            match = re.search(r"\(default \"?([^\s\";)]+)\"?", line)
            if name and match:
                shown[name] = match[1]
        self.assertGreaterEqual(shown.keys(), {"nproc_per_node", "role", "max_restarts", "signals_to_handle"})
        for action in FLAGS:
            default = LATER_DEFAULTS.get(action.dest, action.default)
            # Help says in words what torchrun's None, "" and [] mean.
            if action.dest not in shown or default in (None, "", []):
                continue
            self.assertEqual(shown[action.dest], str(default), action.dest)
        for dest, default in LATER_DEFAULTS.items():
            self.assertEqual(shown.get(dest, default), default)


# What differs between the two for a reason.
OWN_VALUE = {
    "MASTER_PORT": "a free one", "MASTER_ADDR": "loopback is by its address", "TORCHELASTIC_RUN_ID": "random",
    "TORCHELASTIC_ERROR_FILE": "in a directory of its own",
    "TORCHELASTIC_USE_AGENT_STORE": "rank 0 serves the store here, a new one for each generation",
    "OMP_NUM_THREADS": "processors divided by the workers; torchrun: 1"}
# What only one of the two has in the workers' environment.
OWN_NAME = re.compile(r"LOCKSTEP_\w+|_|KINETO_\w+|PYTORCH_\w+|SHLVL|TORCHINDUCTOR_\w+|_*CUDA\w*")


class Workers(unittest.TestCase):
    @staticmethod
    def environments(launcher, flags):
        script = "import os, json; print(json.dumps(dict(os.environ)), flush=True)"
        with tempfile.TemporaryDirectory() as folder:
            done = launch(launcher, *flags, "--nproc-per-node=2", "--no-python", "--redirects=1",
                          f"--log-dir={folder}", sys.executable, "-c", script)
            if done.returncode:
                raise AssertionError(done.stderr)
            return {int(path.parent.name): json.loads(path.read_text())
                    for path in pathlib.Path(folder).rglob("stdout.log")}

    def test_have_the_same_environment(self):
        for flags in (["--standalone"],
                      ["--standalone", "--role=trainer", "--max-restarts=3", "--virtual-local-rank",
                       "--signals-to-handle=SIGTERM,SIGUSR1"]):
            ours, theirs = (self.environments(launcher, flags) for launcher in ([LOCKSTEP, "run"], TORCHRUN))
            for rank in range(2):
                with self.subTest(flags=flags, rank=rank):
                    only = {name for name in ours[rank].keys() ^ theirs[rank].keys()
                            if not OWN_NAME.fullmatch(name)}
                    self.assertEqual(only, set())
                    for name in ours[rank].keys() & theirs[rank].keys() - OWN_VALUE.keys():
                        if not OWN_NAME.fullmatch(name):
                            self.assertEqual(ours[rank][name], theirs[rank][name], name)

    def test_filtered_logs_are_the_same(self):
        script = "import os; print('apple,', os.environ['RANK']); print('pear\\nfig'); print('x')"
        flags = ["--standalone", "--nproc-per-node=3", "--no-python", "--tee=0:1,1:3,2:2", "--local-ranks-filter=0,2",
                 "--duplicate-stdout-filters=apple,,,fig", "--duplicate-stderr-filters=none"]
        seen = []
        for launcher in ([LOCKSTEP, "run"], TORCHRUN):
            with tempfile.TemporaryDirectory() as folder:
                done = launch(launcher, *flags, f"--log-dir={folder}", sys.executable, "-c", script)
                self.assertEqual(done.returncode, 0, done.stderr)
                seen.append({str(path.relative_to(folder)).split("/", 1)[1]:
                             sorted(path.read_text().splitlines())
                             for path in pathlib.Path(folder).rglob("*.log")})
        self.assertEqual(seen[0]["attempt_0/filtered_stdout.log"], ["[default0]:apple, 0", "[default0]:fig"])
        self.assertEqual(seen[0], seen[1])


class Events(unittest.TestCase):
    @staticmethod
    def events(launcher, script, *flags):
        done = launch(launcher, "--standalone", "--nproc-per-node=2", "--no-python", "--event-log-handler=console",
                      *flags, "sh", "-c", script)
        return [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"name"')]

    @staticmethod
    def summary(event):
        meta = event["metadata"]
        inner = json.loads(meta["metadata"])
        inner.pop("worker_pid", None)
        return (event["name"], event["source"], meta["global_rank"], meta["state"], meta["agent_restarts"],
                meta["role"], meta["rdzv_backend"], meta["worker_id"] is None, meta["duration_ms"] is None,
                meta["raw_error"] is None, inner.get("local_rank"), inner.get("role_rank"),
                inner.get("role_world_size"), inner.get("exit_code"), inner["entry_point"])

    def compare(self, script, *flags):
        ours, theirs = (self.events(launcher, script, *flags) for launcher in ([LOCKSTEP, "run"], TORCHRUN))
        self.assertEqual([self.summary(event) for event in ours[:-1]],
                         [self.summary(event) for event in theirs[:-1]])
        for event in ours:
            self.assertEqual(event.keys(), theirs[0].keys())
            self.assertEqual(list(event["metadata"]), list(theirs[0]["metadata"]))
            self.assertGreater(event["timestamp"], 1_600_000_000_000)  # torchrun's is 0
        return self.summary(ours[-1])[:4], self.summary(theirs[-1])[:4]

    def test_of_a_job_that_succeeds(self):
        ours, theirs = self.compare("exit 0")
        self.assertEqual(ours, theirs)

    def test_of_a_job_that_is_restarted_and_fails(self):
        """Torchrun's agent calls itself successful even then."""
        ours, theirs = self.compare("exit $((RANK * 3))", "--max-restarts=1")
        self.assertEqual(ours[3], "FAILED")
        self.assertEqual(theirs[3], "SUCCEEDED")

    def test_are_left_out_by_loglevel_as_in_torchrun(self):
        done = run("--event-log-handler=console", "true", LOGLEVEL="WARNING")
        self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
