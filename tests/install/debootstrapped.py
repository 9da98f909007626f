"""A Debian of its own in a folder, by debootstrap."""

import os
import shutil
import socket
import subprocess

MISSING = [program for program in ("debootstrap", "unshare") if not shutil.which(program)]
if os.geteuid() != 0:
    MISSING.append("root")


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=1800, check=False, **options)
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


class Debian:
    """Debian 12 with these packages and what they depend on, without what they recommend."""

    def __init__(self, folder, *packages):
        self.folder = folder
        self.mounts = ['mount -t proc proc "$0/proc"', 'mount -t tmpfs tmpfs "$0/dev/shm"']
        run("debootstrap", "--variant=minbase", f"--include={','.join(packages)}", "bookworm", folder)
        # As Debian's installer writes it; torchrun looks both names up.
        (folder / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n", encoding="utf-8")

    def mount(self, source, name):
        """A folder of this machine becomes /name."""
        (self.folder / name).mkdir()
        self.mounts.append(f'mount --bind "{source}" "$0/{name}"')

    def run(self, script):
        """In an environment of its own. What is mounted is unmounted with the namespace."""
        script_inside = 'exec chroot "$0" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -ec "$1"'
        return run("unshare", "--mount", "bash", "-ec", "; ".join([*self.mounts, script_inside]), self.folder, script)
