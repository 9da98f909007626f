"""The ladder's programs as jobs of two ranks that take a second: what runs, prints and saves.

What they print and save depends on nothing but the number of ranks, times aside.
"""
import os
import pathlib
import re
import subprocess
import tempfile

import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
# A bound on what hangs, far above what anything here takes.
DEADLINE_S = 100

TEXT = "".join(f"{i} times {i % 7} is {i * (i % 7)}; so it is.\n" for i in range(200))
ARGUMENTS = {
    "multigpu_torchrun": ["2", "1"],
    "multinode": ["2", "1"],
    "toy_ddp": ["elastic"],
    "digits": ["--data", ROOT / "examples/data/digits.csv", "--epochs", "1",
               "--directory", "snapshots"],
    "distributed": ["--synthetic", "8", "--batch_size", "4", "--epochs", "1"],
    "mingpt": ["gpt_config.n_layer=1", "gpt_config.n_head=2", "gpt_config.n_embd=32",
               "data_config.block_size=16", "trainer_config.batch_size=8", "data_config.path=text.txt",
               "trainer_config.snapshot_path=snapshots", "trainer_config.max_steps=10"],
}
# What must be among the lines of each.
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
    """One thread a rank, as launchers differ in how many they give; nothing of another job's."""
    strange = ("LOCKSTEP_", "SLURM_", "PMI", "OMPI_COMM", "TORCHELASTIC_", "MASTER_", "PET_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    # Open MPI wants to be asked for more ranks than processors, and to run as root.
    return {**inherited, "OMP_NUM_THREADS": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def saved_in(folder):
    """The weights in the newest file of torch.save's format: name to tensor. Empty: there is none."""
    files = sorted(folder.rglob("*.pt"))
    if not files:
        return {}
    state = torch.load(files[-1], weights_only=True)
    return state.get("MODEL_STATE") or state["model"]


class Job:
    """A program in a folder of its own."""

    def __init__(self, path):
        self.path = path
        # pylint: disable=consider-using-with  # done() removes it.
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._temporary.name)
        (self.folder / "text.txt").write_text(TEXT, encoding="utf-8")

    def done(self):
        self._temporary.cleanup()

    def run(self, launcher, **variables):
        """Runs launcher(folder) + program. Returns its lines, sorted, without times."""
        command = [*launcher(self.folder), self.path, *ARGUMENTS[self.path.name]]
        ended = run(command, self.folder, **variables)
        if ended.returncode != 0:
            raise AssertionError(f"{self.path.name}: {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return timeless(ended.stdout)


def run(command, folder, **variables):
    return subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True,
                          timeout=DEADLINE_S, check=False, env=environment() | variables)


def timeless(output):
    return sorted(re.sub(r"[\d.]+ (s|steps/s)$", "TIME", line) for line in output.splitlines())
