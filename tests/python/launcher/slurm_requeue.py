"""A job of SLURM's that is requeued: its launchers end their workers in time, and the job that starts
again goes on where the first stopped.

    slurm_requeue.py LOCKSTEP [unittest arguments]
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from missing import enter_for_class
from processes import wait_for
from slurm_cluster import SlurmCluster

LOCKSTEP = os.path.abspath(sys.argv[1])
# A bound on what hangs: SLURM may hold a requeued job back for two minutes.
DEADLINE_S = 240

# Keeps a snapshot of how far it is when it is told to end, as a training program does.
WORKER = """#!/bin/sh
snapshot=snapshot.$RANK
echo "rank $RANK of $WORLD_SIZE starts at $(cat $snapshot 2>/dev/null || echo 0)" >> "said.$RANK"
if [ -f $snapshot ]; then exit 0; fi
# SLURM's own SIGTERM reaches what a worker has started, too, and may do so first.
trap 'echo 7 > $snapshot.new; mv $snapshot.new $snapshot; exit 0' TERM
touch "ready.$RANK"
while :; do sleep 0.1; done
"""

# On each machine one launcher, of two workers.
JOB = """#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --output=output.txt --open-mode=append
export LOCKSTEP_JOB_SECRET=secret
srun --kill-on-bad-exit=0 {lockstep} run --nproc-per-node=2 ./worker.sh
echo "restart ${{SLURM_RESTART_COUNT:-0}}: code $?"
"""


class RequeueTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = enter_for_class(cls, SlurmCluster())

    def setUp(self):
        self.may_ask = 0
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)
        for name, text in (("worker.sh", WORKER), ("job.sh", JOB.format(lockstep=LOCKSTEP))):
            (self.folder / name).write_text(text, "utf-8")
            (self.folder / name).chmod(0o700)

    def slurm(self, *command):
        ended = subprocess.run([*self.cluster.on(self.folder), *command], capture_output=True, text=True,
                               check=False, timeout=DEADLINE_S)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout

    def state(self, job):
        return re.search(r"JobState=(\w+)", self.slurm("scontrol", "show", "job", job))[1]

    def has_ended_again(self, job):
        # SLURM holds a requeued job back for two minutes, so that nothing of it is left anywhere, but does so
        # some time after it calls it pending.
        # Asked all the time, its controller schedules nothing.
        if time.monotonic() > self.may_ask:
            self.may_ask = time.monotonic() + 1
            if self.state(job) == "PENDING":
                subprocess.run([*self.cluster.on(self.folder), "scontrol", "update", f"JobId={job}", "StartTime=now"],
                               capture_output=True, check=False, timeout=DEADLINE_S)
        return "restart 1: code 0" in self.output()

    def output(self):
        path = self.folder / "output.txt"
        return path.read_text("utf-8") if path.exists() else ""

    def what_slurm_says(self, job):
        log = (self.cluster.folder / "slurmctld.log").read_text("utf-8", errors="replace")
        return "\n".join([self.output(), self.slurm("scontrol", "show", "job", job), *log.splitlines()[-40:]])

    def test_a_requeued_job_goes_on_where_it_stopped(self):
        job = self.slurm("sbatch", "--parsable", "job.sh").strip()
        wait_for(lambda: len(list(self.folder.glob("ready.*"))) == 4, self.output,
                 DEADLINE_S)
        self.slurm("scontrol", "requeue", job)
        # SIGTERM has reached every worker, and SIGKILL none: it comes 30 s later (KillWait).
        wait_for(lambda: len(list(self.folder.glob("snapshot.[0-3]"))) == 4,
                 lambda: f"{sorted(os.listdir(self.folder))} {self.output()}", DEADLINE_S)
        wait_for(lambda: self.has_ended_again(job), lambda: self.what_slurm_says(job), DEADLINE_S)
        for rank in range(4):
            self.assertEqual((self.folder / f"said.{rank}").read_text("utf-8").splitlines(),
                             [f"rank {rank} of 4 starts at 0", f"rank {rank} of 4 starts at 7"])
        said = self.output()
        self.assertEqual(said.count("stopped by SIGTERM"), 2, said)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
