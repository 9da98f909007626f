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
import subprocess
import sys
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import some
from free_ports import free_port
from killed_rank import assert_same_bits, run_and_kill
from ladder_jobs import (ARGUMENTS, DEADLINE_S, EXPECTED, ROOT, Job, environment, run, saved_in,
                         timeless)
from missing import enter_for_class
from mpirun import mpirun_of
from slurm_cluster import SlurmCluster

LOCKSTEP, PROGRAMS = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
MPIEXEC = sys.argv[3] if len(sys.argv) > 3 else None
# What the other launchers start; multinode has tests of its own.
STARTED = some(("multigpu_torchrun", "mingpt", "toy_ddp", "digits", "distributed", "multinode"), 3)


def lockstep_run(_):
    return [LOCKSTEP, "run", "--standalone", "--nproc-per-node=2"]


@functools.cache
def reference(program):
    """What the program prints and saves under lockstep run."""
    job = Job(PROGRAMS / program)
    try:
        return job.run(lockstep_run), saved_in(job.folder)
    finally:
        job.done()


def commands_of_guides(launcher):
    """Its command lines in the guides, each with the lines that it prints there."""
    found = []
    for name in ("multigpu-torchrun.md", "multinode.md"):
        text = (ROOT / "docs/guides" / name).read_text("utf-8")
        for block in re.findall(r"```console\n(.*?)```", text, re.S):
            commands = [each.split("\n") for each in re.split(r"^\$ ", block, flags=re.M)[1:]]
            found += [(lines[0], [line for line in lines[1:] if line]) for lines in commands
                      if lines[0].startswith(f"{launcher} ")]
    return found


class Launchers(unittest.TestCase):
    def job(self, program):
        job = Job(PROGRAMS / program)
        self.addCleanup(job.done)
        return job

    def assert_guides_tell(self, launcher, starts, count):
        """starts(folder, command line): what to run for it."""
        found = commands_of_guides(launcher)
        self.assertEqual(len(found), count)
        for line, printed in found:
            line = re.sub(r"--master-port=\d+", f"--master-port={free_port()}", line)
            with self.subTest(line):
                job = self.job("multinode")
                path = f"{PROGRAMS}{os.pathsep}{LOCKSTEP.parent}{os.pathsep}{os.environ['PATH']}"
                ended = run(starts(job.folder, line), job.folder, PATH=path,
                            LOCKSTEP_JOB_SECRET="a secret")
                self.assertEqual(ended.returncode, 0, ended.stderr)
                self.assertIn("[GPU0] Epoch 0 | ", ended.stdout)
                self.assertEqual(set(printed) - set(ended.stdout.splitlines()), set())

    def assert_as_reference(self, program, launcher, renamed=lambda line: line, **variables):
        with self.subTest(program):
            job = self.job(program)
            lines, saved = reference(program)
            self.assertEqual(job.run(launcher, **variables), sorted(map(renamed, lines)))
            assert_same_bits(self, saved_in(job.folder), saved)


class LockstepRun(Launchers):
    def test_every_program(self):
        for program in ARGUMENTS:
            with self.subTest(program):
                lines, saved = reference(program)
                for pattern in EXPECTED[program]:
                    self.assertTrue(any(re.fullmatch(pattern, line) for line in lines),
                                    f"no {pattern} in {lines}")
                self.assertEqual(saved == {}, program in ("toy_ddp", "distributed"))
        for program in ("multigpu_torchrun", "multinode"):
            lines, _ = reference(program)
            self.assertEqual(len(lines), len(set(lines)))
            self.assertEqual(len(lines), 6)


class Torchrun(Launchers):
    COMMAND = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2"]

    def test_programs(self):
        for program in set(STARTED) - {"multinode"}:  # it has two nodes below
            self.assert_as_reference(program, lambda _: [*self.COMMAND, "--standalone"])

    def test_the_guides_commands(self):
        self.assert_guides_tell("torchrun", lambda _, line: [
            "bash", "-c", line.replace("torchrun", f"{sys.executable} -m torch.distributed.run", 1)], 1)

    def test_two_nodes(self):
        job, port = self.job("multinode"), free_port()
        command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nnodes=2",
                   "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                   "--rdzv-id=launchers", "--local-addr=127.0.0.1", job.path, *ARGUMENTS["multinode"]]
        agents = [subprocess.Popen(list(map(str, command)), cwd=job.folder, env=environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                  for _ in range(2)]
        for agent in agents:
            self.addCleanup(agent.kill)
        ended = [agent.communicate(timeout=DEADLINE_S) for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0, 0], ended)
        lines, saved = reference("multinode")
        self.assertEqual(timeless(ended[0][0] + ended[1][0]), lines)
        assert_same_bits(self, saved_in(job.folder), saved)

    def test_a_killed_rank_costs_no_bit(self):
        arguments = ["100", "1"]
        undisturbed = self.job("multigpu_torchrun")
        ended = run([*lockstep_run(None), undisturbed.path, *arguments], undisturbed.folder)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        job = self.job("multigpu_torchrun")
        code, _, lines = run_and_kill(
            [*self.COMMAND, "--standalone", "--max-restarts=1", job.path, *arguments],
            "Epoch 7 | Training snapshot saved", job.path, cwd=job.folder, env=environment())
        self.assertEqual(code, 0, lines)
        resumed = [int(match[1]) for line in lines
                   if (match := re.fullmatch(r"Resuming training from snapshot at Epoch (\d+)", line))]
        self.assertEqual(len(resumed), 2, lines)
        self.assertGreaterEqual(resumed[0], 8)
        snapshot = torch.load(job.folder / "snapshot.pt", weights_only=True)
        self.assertEqual(snapshot["EPOCHS_RUN"], 100)
        assert_same_bits(self, snapshot["MODEL_STATE"], saved_in(undisturbed.folder))


class Mpirun(Launchers):
    def programs(self, word, package):
        path = mpirun_of(word)
        if not path:
            self.skipTest(f"no mpirun says {word}: apt-get install {package}")
        for program in STARTED:
            self.assert_as_reference(program, lambda _: [path, "-n", "2"])

    def test_programs_under_open_mpi(self):
        self.programs("Open MPI", "openmpi-bin")

    def test_programs_under_mpich(self):
        self.programs("HYDRA", "mpich")

    def test_the_guides_commands(self):
        for word in ("Open MPI", "HYDRA"):
            if path := mpirun_of(word):
                self.assert_guides_tell("mpirun", lambda _, line, path=path: [
                    "bash", "-c", line.replace("mpirun", path, 1)], 1)

    def test_the_backend_mpi_by_name(self):
        if not MPIEXEC:
            self.skipTest("this build has no MPI: apt-get install libopenmpi-dev, and configure again")
        self.assert_as_reference("multinode", lambda _: [MPIEXEC, "-n", "2"], LOCKSTEP_BACKEND="mpi")


class Slurm(Launchers):
    @classmethod
    def setUpClass(cls):
        cls.cluster = enter_for_class(cls, SlurmCluster())

    def srun(self, *flags):
        return lambda folder: [*self.cluster.on(folder), "srun", *flags]

    def test_programs_on_one_node(self):
        for program in STARTED:
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
        script.write_text(f"#!/bin/sh\nsrun {job.path} {' '.join(ARGUMENTS['multinode'])}\n"
                          "echo code $? >ended\n", "utf-8")
        submitted = run([*self.cluster.on(job.folder), "sbatch", "--nodes=2", "--ntasks=2",
                         "--output=output.txt", script], job.folder)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        self.assertTrue(select.select([ended], [], [], DEADLINE_S)[0], "it did not end")
        output = (job.folder / "output.txt").read_text("utf-8")
        self.assertEqual(os.read(ended, 100), b"code 0\n", output)
        lines, saved = reference("multinode")
        self.assertEqual(timeless(output), lines)
        assert_same_bits(self, saved_in(job.folder), saved)

    def test_the_guides_commands(self):
        self.assert_guides_tell("srun", lambda folder, line: [
            *self.cluster.on(folder), "bash", "-c", line], 3)

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
