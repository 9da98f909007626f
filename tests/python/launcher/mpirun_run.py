"""mpirun starts a launcher on each machine, and they find each other.

    mpirun_run.py LOCKSTEP [unittest arguments]

The mpirun is MPICH's or Open MPI's, whichever are there; machines are addresses of loopback, which
each mpirun reaches by an sshd of the test's own.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from missing import enter_for_class
from mpirun import mpirun_of
from ssh_server import HOSTS, SshServer

LOCKSTEP = os.path.abspath(sys.argv[1])
# A bound on what hangs.
DEADLINE_S = 60
SAYS = 'echo "$RANK of $WORLD_SIZE, machine $GROUP_RANK"'
EXPECTED = [f"{rank} of 4, machine {rank // 2}" for rank in range(4)]
RUN = [LOCKSTEP, "run", "--nproc-per-node=2"]


class MpirunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = enter_for_class(cls, SshServer())

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)
        self.ssh = self.folder / "ssh"
        self.ssh.write_text(f'#!/bin/sh\nexec {self.server.command()} "$@"\n', "utf-8")
        self.ssh.chmod(0o700)

    def run_job(self, *command):
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=self.folder,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"LOCKSTEP_JOB_SECRET": "secret", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                              "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                              "OMPI_MCA_rmaps_base_oversubscribe": "1"})
        return ended.returncode, ended.stdout, ended.stderr

    def mpich(self, hosts, *flags):
        path = mpirun_of("HYDRA")
        if not path:
            self.skipTest("no mpirun says HYDRA: apt-get install mpich")
        return [path, "-launcher", "ssh", "-launcher-exec", str(self.ssh), "-hosts", ",".join(hosts),
                *flags]

    def test_mpichs_passes_on_where_the_first_is(self):
        code, out, err = self.run_job(*self.mpich(HOSTS[:2], "-n", "2", "-ppn", "1"), *RUN, "sh", "-c", SAYS)
        self.assertEqual((code, sorted(out.splitlines())), (0, EXPECTED), err)

    def test_several_launchers_on_a_machine_are_refused(self):
        code, _, err = self.run_job(*self.mpich(HOSTS[:1], "-n", "2"), *RUN, "sh", "-c", SAYS)
        self.assertNotEqual(code, 0)
        self.assertIn("mpirun started 2 launchers on this machine, where one starts all workers; use mpirun "
                      "--map-by ppr:1:node (Open MPI) or mpirun -ppn 1 (MPICH)", err)

    def test_standalone_launchers_are_jobs_of_their_own(self):
        code, out, err = self.run_job(*self.mpich(HOSTS[:1], "-n", "2"), *RUN, "--standalone", "sh", "-c", SAYS)
        self.assertEqual((code, sorted(out.splitlines())),
                         (0, sorted(2 * [f"{rank} of 2, machine 0" for rank in range(2)])), err)

    def open_mpi(self):
        path = mpirun_of("Open")  # Open MPI, or OpenRTE
        if not path:
            self.skipTest("no mpirun says Open MPI: apt-get install openmpi-bin")
        return path

    def test_open_mpis_has_to_be_told(self):
        code, _, err = self.run_job(self.open_mpi(), "-n", "2", *RUN, "sh", "-c", SAYS)
        self.assertNotEqual(code, 0)
        self.assertIn("mpirun started 2 launchers on this machine", err)
        # As if each of two machines had one.
        one_each = ["env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", *RUN]
        code, _, err = self.run_job(self.open_mpi(), "-n", "2", *one_each, "sh", "-c", SAYS)
        self.assertNotEqual(code, 0)
        self.assertIn("Open MPI's mpirun does not give the address of its first process; add --master-addr=HOST",
                      err)
        code, out, err = self.run_job(self.open_mpi(), "-n", "2", *one_each, f"--master-addr={HOSTS[0]}",
                                      f"--master-port={self.server.port + 1}", "sh", "-c", SAYS)
        self.assertEqual((code, sorted(out.splitlines())), (0, EXPECTED), err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
