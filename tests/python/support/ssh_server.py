"""An sshd of the test's own on loopback, whose addresses stand for machines."""

import getpass
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from free_ports import free_port
from missing import Missing

# Machines, as far as ssh can tell. Nobody listens at ABSENT.
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
ABSENT = "127.0.0.9"
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
START_S = 30

SERVER = """\
Port {port}
{addresses}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
"""

CLIENT = """\
Port {port}
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking yes
BatchMode yes
ConnectTimeout 10
"""


class SshServer:
    """A context in which it runs. Raises Missing."""

    def __enter__(self):
        self.program = shutil.which("sshd", path=PATH)  # which wants to be called by its whole path
        for program, path in (("sshd", self.program), ("ssh", shutil.which("ssh"))):
            if not path:
                raise Missing(f"there is no {program}: apt-get install openssh-server openssh-client")
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it locks itself in
        # pylint: disable=consider-using-with  # __exit__ removes it.
        self._temporary = tempfile.TemporaryDirectory(prefix="lockstep-sshd-")
        self.folder = pathlib.Path(self._temporary.name)
        self._process = None
        try:
            self._configure()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._process:
            self._process.kill()
            self._process.wait()
        self._temporary.cleanup()

    def _configure(self):
        for key in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key],
                           check=True)
        public = (self.folder / "key.pub").read_text("utf-8")
        (self.folder / "authorized_keys").write_text(public, "utf-8")
        self.port = free_port()
        known = " ".join((self.folder / "host_key.pub").read_text("utf-8").split()[:2])
        (self.folder / "known_hosts").write_text(
            "".join(f"[{host}]:{self.port} {known}\n" for host in HOSTS), "utf-8")
        addresses = "\n".join(f"ListenAddress {host}" for host in HOSTS)
        for name, text in (("server", SERVER), ("client", CLIENT)):
            (self.folder / name).write_text(
                text.format(port=self.port, folder=self.folder, addresses=addresses), "utf-8")

    def _start(self):
        log = self.folder / "log"
        with open(log, "wb") as stderr:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", self.program, "-D", "-e", "-f",
                 self.folder / "server"], stdin=subprocess.DEVNULL, stderr=stderr)
        deadline = time.monotonic() + START_S
        while log.read_text("utf-8").count("Server listening on") < len(HOSTS):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd does not start: {log.read_text('utf-8')}")
            time.sleep(0.01)
        tried = subprocess.run([*self.command().split(), HOSTS[0], "exit 7"], check=False,
                               stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if tried.returncode != 7:
            raise Missing(f"{getpass.getuser()} cannot log in by ssh here: {tried.stderr.strip()}")

    def command(self):
        """What reaches the hosts."""
        return f"ssh -F {self.folder}/client"

    def connections(self):
        """The processes of sshd that serve one, by address of the host."""
        found = {}
        ports = subprocess.run(["ss", "-tnpH", "state", "established", "sport", f"= :{self.port}"],
                               capture_output=True, text=True, check=True).stdout
        for line in ports.splitlines():
            local = line.split()[2].rpartition(":")[0]
            pids = [int(part.split(",")[0]) for part in line.split("pid=")[1:]]
            found.setdefault(local, []).extend(pids)
        return found
