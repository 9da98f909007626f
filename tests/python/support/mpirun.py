"""The launchers of MPI that this machine has."""

import functools
import shutil
import subprocess


@functools.cache
def version_of(path):
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout


def mpirun_of(word):
    """The mpirun whose --version has the word."""
    for name in ("mpirun.openmpi", "mpirun.mpich", "mpirun", "mpiexec"):
        path = shutil.which(name)
        if path and word in version_of(path):
            return path
    return None
