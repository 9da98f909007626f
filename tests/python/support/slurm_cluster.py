"""A SLURM of two nodes on this machine: munged, slurmctld and two slurmd, with srun and sbatch.

All of it lives in a folder and in namespaces (processes, mounts) of its own: nothing is written to
/etc or /run, and the kernel ends every process of it with the first one, even if the test is killed.
"""

import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from free_ports import free_ports
from missing import Missing

NODES = ("n1", "n2")
CPUS_PER_NODE = 4
# A bound on what hangs: it takes a second.
START_S = 60
# Daemons are not in everybody's PATH.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

CONFIGURATION = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
# Batch scripts start at once, not when the scheduler next looks.
SchedulerParameters=batch_sched_delay=0,sched_interval=1
# The nodes may have more processors than the machine.
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory=1000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""

# The first process of the namespace. It stays to bury those that lost their parent.
INIT = """\
mount --bind hosts /etc/hosts
munged --socket="$PWD/munge.socket" --key-file="$PWD/munge.key" --pid-file="$PWD/munged.pid" \
  --seed-file="$PWD/munge.seed" --log-file="$PWD/munged.log"
slurmctld
for node in n1 n2; do slurmd -N "$node"; done
echo up
exec >/dev/null 2>&1
sleep infinity &
wait
"""


class SlurmCluster:
    """A context in which the cluster runs. Raises Missing."""

    def __enter__(self):
        for program in ("slurmctld", "slurmd", "srun", "sbatch", "munged"):
            if not shutil.which(program, path=PATH):
                raise Missing(f"SLURM is not installed ({program}): apt-get install slurm-wlm munge")
        if os.geteuid() != 0:
            raise Missing("a SLURM of the test's own needs root (CAP_SYS_ADMIN)")
        # pylint: disable=consider-using-with  # __exit__ removes it.
        self._temporary = tempfile.TemporaryDirectory(prefix="lockstep-slurm-")
        self.folder = pathlib.Path(self._temporary.name)
        self._process = None
        try:
            self._configure()
            self._start()
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._process:
            for child in self._children():
                os.kill(child, signal.SIGKILL)  # and the kernel all others of its namespace
            self._process.wait()  # for them
            self._process.stdout.close()
        self._temporary.cleanup()

    def _configure(self):
        self.folder.chmod(0o755)  # munged wants it so
        (self.folder / "state").mkdir()
        for node in NODES:
            (self.folder / f"spool.{node}").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        hosts = pathlib.Path("/etc/hosts").read_text(encoding="utf-8")
        (self.folder / "hosts").write_text(f"127.0.0.1 {' '.join(NODES)}\n{hosts}", encoding="utf-8")
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(host=socket.gethostname().split(".")[0], folder=self.folder,
                                 ports=free_ports(3), cpus=CPUS_PER_NODE), encoding="utf-8")

    def _start(self):
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork",
             "--kill-child", "--mount-proc", "bash", "-euc", INIT],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")})
        said = []
        for line in self._process.stdout:
            if line == "up\n":
                return
            said.append(line)
        raise RuntimeError(f"SLURM does not start: {''.join(said)[-2000:]}")

    def _children(self):
        path = pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        try:
            return [int(pid) for pid in path.read_text(encoding="ascii").split()]
        except OSError:
            return []  # It has ended.

    def _wait_until_idle(self):
        deadline = time.monotonic() + START_S
        states = ""
        while time.monotonic() < deadline:
            asked = subprocess.run([*self.on(self.folder), "sinfo", "--noheader", "--Node",
                                    "--format=%T"], capture_output=True, text=True, check=False)
            states = asked.stdout + asked.stderr
            if states.split() == ["idle"] * len(NODES):
                return
            time.sleep(0.05)
        raise RuntimeError(f"SLURM's nodes are not idle after {START_S} s but: {states}")

    def on(self, folder):
        """What to put in front of srun, sbatch and so on to run them in that folder."""
        return ["nsenter", f"--target={self._children()[0]}", "--mount", "--pid", f"--wd={folder}",
                "--", "env", f"SLURM_CONF={self.folder / 'slurm.conf'}"]
