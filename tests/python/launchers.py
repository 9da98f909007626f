#!/usr/bin/env python3
"""The ladder's programs under every launcher that people have: they print and save the same.

    launchers.py <lockstep> <folder of the programs> [<mpiexec of the MPI in this build>]

What two ranks do under `lockstep run` is looked at; what they do under torchrun, mpirun (Open MPI's
and MPICH's) and srun is compared with it, line by line and bit by bit. No launcher is told where the
ranks meet. SLURM is a real one, of two nodes on this machine (slurm_cluster.py).
"""
import functools
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import torch

from slurm_cluster import Missing, SlurmCluster, free_ports

LOCKSTEP, PROGRAMS = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
MPIEXEC = sys.argv[3] if len(sys.argv) > 3 else None
ROOT = pathlib.Path(__file__).resolve().parents[2]
# A bound on what hangs, far above what anything here takes.
DEADLINE_S = 100

TEXT = "".join(f"{i} times {i % 7} is {i * (i % 7)}; so it is.\n" for i in range(200))
JOBS = {
    "multigpu_torchrun": ["2", "1"],
    "multinode": ["2", "1"],
    "toy_ddp": ["elastic"],
    "digits": ["--data", ROOT / "examples/data/digits.csv", "--epochs", "1",
               "--snapshot-dir", "snapshots"],
    "distributed": ["--synthetic", "8", "--batch_size", "4", "--epochs", "1"],
    "mingpt": ["gpt_config.n_layer=1", "gpt_config.n_head=2", "gpt_config.n_embd=32",
               "data_config.block_size=16", "trainer_config.batch_size=8", "data_config.path=text.txt",
               "trainer_config.snapshot_path=snapshots", "trainer_config.max_steps=10"],
}
# Of lines: all that a program prints, each once, whatever the order.
EXPECTED = {
    "multigpu_torchrun": [r"\[GPU0\] Epoch [01] \| Batchsize: 32 \| Steps: 64",
                          r"\[GPU1\] Epoch [01] \| Batchsize: 32 \| Steps: 64",
                          r"Epoch [01] \| Training snapshot saved at snapshot.pt"],
    "toy_ddp": [r"(Running|Finished running) elastic DDP example on rank [01]\."],
    "digits": [r"Test accuracy: [5-9]\d\.\d\d % \(\d+ of 359 digits\), trained in TIME"],
    "distributed": [r"epoch 1/1  loss \d\.\d+  accuracy .* TIME", r"time per epoch: TIME"],
    "mingpt": [r"\[RANK0\] Step 10 \| Eval Loss [12]\.\d+"],
}
EXPECTED["multinode"] = EXPECTED["multigpu_torchrun"]


def environment():
    """One thread a rank, for launchers differ in that; nothing of another job's."""
    strange = ("LOCKSTEP_", "SLURM_", "PMI", "OMPI_COMM", "TORCHELASTIC_", "MASTER_", "PET_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    # Open MPI wants to be asked for more ranks than processors, and to run as root.
    return {**inherited, "OMP_NUM_THREADS": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def saved_in(folder):
    """The weights in the newest file of torch.save's format: name to tensor. None: there is none."""
    files = sorted(folder.rglob("*.pt"))
    if not files:
        return None
    state = torch.load(files[-1], weights_only=True)
    return state.get("MODEL_STATE") or state["model"]


class Job:
    """A program in a folder of its own."""

    def __init__(self, program):
        self.program = program
        self.path = PROGRAMS / program
        # pylint: disable=consider-using-with  # done() removes it.
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._temporary.name)
        (self.folder / "text.txt").write_text(TEXT, encoding="utf-8")

    def done(self):
        self._temporary.cleanup()

    def run(self, launcher, **variables):
        """Runs launcher(folder) + program. Returns its lines in order, without times."""
        command = [*launcher(self.folder), self.path, *JOBS[self.program]]
        ended = run(command, self.folder, **variables)
        if ended.returncode != 0:
            raise AssertionError(f"{self.program}: {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return timeless(ended.stdout)


def run(command, folder, **variables):
    return subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True,
                          timeout=DEADLINE_S, check=False, env=environment() | variables)


def timeless(output):
    return sorted(re.sub(r"[\d.]+ (s|steps/s)$", "TIME", line) for line in output.splitlines())


def lockstep_run(_):
    return [LOCKSTEP, "run", "--standalone", "--nproc-per-node=2"]


@functools.cache
def version_of(path):
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout


@functools.cache
def reference(program):
    """What the program prints and saves under lockstep run."""
    job = Job(program)
    try:
        return job.run(lockstep_run), saved_in(job.folder)
    finally:
        job.done()


def restarting(command):
    """Starts the command and kills a worker once there is a snapshot. Returns its lines."""
    with command as job:
        lines, killed = [], False
        for line in job.stdout:
            lines.append(line.strip())
            if not killed and "Epoch 7 | Training snapshot saved" in line:
                children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text("ascii")
                workers = [pid for pid in map(int, children.split())
                           if "multigpu" in pathlib.Path(f"/proc/{pid}/cmdline").read_text("utf-8")]
                os.kill(workers[1], signal.SIGKILL)
                killed = True
    return job.returncode, lines


class Launchers(unittest.TestCase):
    def job(self, program):
        job = Job(program)
        self.addCleanup(job.done)
        return job

    def assert_same_bits(self, ours, theirs):
        self.assertEqual(ours is None, theirs is None)
        for name, value in (theirs or {}).items():
            self.assertTrue(torch.equal(ours[name], value), name)

    def assert_as_reference(self, program, launcher, renamed=lambda line: line, **variables):
        with self.subTest(program):
            job = self.job(program)
            lines, saved = reference(program)
            self.assertEqual(job.run(launcher, **variables), sorted(map(renamed, lines)))
            self.assert_same_bits(saved_in(job.folder), saved)


class LockstepRun(Launchers):
    def test_every_program(self):
        for program in JOBS:
            with self.subTest(program):
                lines, saved = reference(program)
                for pattern in EXPECTED[program]:
                    self.assertTrue(any(re.fullmatch(pattern, line) for line in lines),
                                    f"no {pattern} in {lines}")
                self.assertEqual(saved is None, program in ("toy_ddp", "distributed"))
        for program in ("multigpu_torchrun", "multinode"):
            lines, _ = reference(program)
            self.assertEqual(len(lines), len(set(lines)))
            self.assertEqual(len(lines), 6)


class Torchrun(Launchers):
    COMMAND = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2"]

    def test_every_program(self):
        for program in JOBS.keys() - {"multinode"}:  # it has two nodes below
            self.assert_as_reference(program, lambda _: [*self.COMMAND, "--standalone"])

    def test_two_nodes(self):
        job, (port,) = self.job("multinode"), free_ports(1)
        command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nnodes=2",
                   "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                   "--rdzv-id=launchers", "--local-addr=127.0.0.1", job.path, *JOBS["multinode"]]
        agents = [subprocess.Popen(list(map(str, command)), cwd=job.folder, env=environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                  for _ in range(2)]
        for agent in agents:
            self.addCleanup(agent.kill)
        ended = [agent.communicate(timeout=DEADLINE_S) for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0, 0], ended)
        lines, saved = reference("multinode")
        self.assertEqual(timeless(ended[0][0] + ended[1][0]), lines)
        self.assert_same_bits(saved_in(job.folder), saved)

    def test_a_killed_rank_costs_no_bit(self):
        arguments = ["30", "1"]
        undisturbed = self.job("multigpu_torchrun")
        ended = run([*lockstep_run(None), undisturbed.path, *arguments], undisturbed.folder)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        job = self.job("multigpu_torchrun")
        code, lines = restarting(subprocess.Popen(
            [*self.COMMAND, "--standalone", "--max-restarts=1", job.path, *arguments],
            cwd=job.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True))
        self.assertEqual(code, 0, lines)
        resumed = [int(match[1]) for line in lines
                   if (match := re.fullmatch(r"Resuming training from snapshot at Epoch (\d+)", line))]
        self.assertEqual(len(resumed), 2, lines)
        self.assertGreaterEqual(resumed[0], 8)
        snapshot = torch.load(job.folder / "snapshot.pt", weights_only=True)
        self.assertEqual(snapshot["EPOCHS_RUN"], 30)
        self.assert_same_bits(snapshot["MODEL_STATE"], saved_in(undisturbed.folder))


def mpirun_of(word):
    """The mpirun whose --version has the word."""
    for name in ("mpirun.openmpi", "mpirun.mpich", "mpirun", "mpiexec"):
        path = shutil.which(name)
        if path and word in version_of(path):
            return path
    return None


class Mpirun(Launchers):
    def every_program(self, word, package):
        path = mpirun_of(word)
        if not path:
            self.skipTest(f"no mpirun says {word}: apt-get install {package}")
        for program in JOBS:
            self.assert_as_reference(program, lambda _: [path, "-n", "2"])

    def test_every_program_under_open_mpi(self):
        self.every_program("Open MPI", "openmpi-bin")

    def test_every_program_under_mpich(self):
        self.every_program("HYDRA", "mpich")

    def test_the_backend_mpi_by_name(self):
        if not MPIEXEC:
            self.skipTest("this build has no MPI: apt-get install libopenmpi-dev, and configure again")
        self.assert_as_reference("multinode", lambda _: [MPIEXEC, "-n", "2"], LOCKSTEP_BACKEND="mpi")


class Slurm(Launchers):
    @classmethod
    def setUpClass(cls):
        cls.cluster = SlurmCluster()
        try:
            cls.cluster.__enter__()
        except Missing as missing:
            raise unittest.SkipTest(str(missing)) from None
        cls.addClassCleanup(cls.cluster.__exit__)

    def srun(self, *flags):
        return lambda folder: [*self.cluster.on(folder), "srun", *flags]

    def test_every_program_on_one_node(self):
        for program in JOBS:
            self.assert_as_reference(program, self.srun("--nodes=1", "--ntasks=2"))

    def test_two_nodes(self):
        # Each is the first of its node.
        first = {"multigpu_torchrun": lambda line: line.replace("[GPU1]", "[GPU0]")}
        for program in ("multigpu_torchrun", "multinode", "digits"):
            self.assert_as_reference(program, self.srun("--nodes=2", "--ntasks-per-node=1"),
                                     first.get(program, str))

    def test_tasks_of_pmi(self):
        self.assert_as_reference("multinode", self.srun("--nodes=2", "--ntasks=2", "--mpi=pmi2"))

    def test_two_nodes_in_a_batch_script(self):
        job = self.job("multinode")
        os.mkfifo(job.folder / "ended")
        ended = os.open(job.folder / "ended", os.O_RDWR)
        self.addCleanup(os.close, ended)
        script = job.folder / "job.sh"
        script.write_text(f"#!/bin/sh\nsrun {job.path} {' '.join(JOBS['multinode'])}\n"
                          "echo code $? >ended\n", "utf-8")
        submitted = run([*self.cluster.on(job.folder), "sbatch", "--nodes=2", "--ntasks=2",
                         "--output=output.txt", script], job.folder)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        self.assertTrue(select.select([ended], [], [], DEADLINE_S)[0], "it did not end")
        output = (job.folder / "output.txt").read_text("utf-8")
        self.assertEqual(os.read(ended, 100), b"code 0\n", output)
        lines, saved = reference("multinode")
        self.assertEqual(timeless(output), lines)
        self.assert_same_bits(saved_in(job.folder), saved)

    def test_a_launcher_on_each_node(self):
        (port,) = free_ports(1)
        agent = (f'exec {LOCKSTEP} run --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=n1 '
                 f'--master-port={port} "$@"')
        self.assert_as_reference("multinode", lambda folder: [
            *self.srun("--nodes=2", "--ntasks=2")(folder), "sh", "-c", agent, "sh"])

    def test_a_node_without_an_address_says_what_to_set(self):
        job = self.job("multinode")
        ended = run([*self.srun("--nodes=2", "--ntasks=2")(job.folder), "sh", "-c",
                     'SLURM_STEP_NODELIST=nowhere exec "$@"', "sh", job.path, "2", "1"], job.folder)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        errors = [line for line in ended.stderr.splitlines() if line.startswith("lockstep[")]
        self.assertEqual(len(errors), 2, ended.stderr)
        for error in errors:
            self.assertIn("host 'nowhere' does not resolve", error)
            self.assertIn("set MASTER_ADDR", error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
