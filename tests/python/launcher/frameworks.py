#!/usr/bin/env python3
"""Programs of Accelerate and of Lightning run under `lockstep run` as under torchrun.

    frameworks.py <lockstep>
"""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

LOCKSTEP = os.path.abspath(sys.argv[1])
DEADLINE_S = 240

ACCELERATE = """
    import os
    import sys
    import torch
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    inputs = torch.arange(32.0).reshape(16, 2) / 32
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Linear(2, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(data, batch_size=2))
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
    weights = [value.hex() for parameter in model.parameters() for value in parameter.flatten().tolist()]
    sys.stdout.write(f"rank {accelerator.process_index} of {accelerator.num_processes}: {' '.join(weights)}\\n")
    sys.stdout.flush()
    os._exit(0)  # PyTorch's Gloo sometimes aborts in the interpreter's end.
"""

LIGHTNING = """
    import os
    import sys
    import warnings
    import torch
    import pytorch_lightning as lightning

    warnings.filterwarnings("ignore")

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            inputs, targets = batch
            return torch.nn.functional.mse_loss(self.layer(inputs), targets)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    lightning.seed_everything(0)
    inputs = torch.arange(32.0).reshape(16, 2) / 32
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = Regression()
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
                                max_epochs=2, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
    weights = [value.hex() for parameter in model.parameters() for value in parameter.flatten().tolist()]
    sys.stdout.write(f"rank {trainer.global_rank} of {trainer.world_size}: {' '.join(weights)}\\n")
    sys.stdout.flush()
    os._exit(0)  # PyTorch's Gloo sometimes aborts in the interpreter's end.
"""


class Frameworks(unittest.TestCase):
    def lines_under(self, launcher, program, package):
        """What the ranks print, sorted."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            script = pathlib.Path(folder, "train.py")
            script.write_text(textwrap.dedent(program), encoding="utf-8")
            result = subprocess.run([*launcher, "--standalone", "--nproc-per-node=2", script], cwd=folder,
                                    env=os.environ | {"PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"},
                                    capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = sorted(re.findall(r"^rank \d of \d: .*$", result.stdout, re.MULTILINE))
        self.assertEqual(len(lines), 2, f"{package}: {result.stdout}\n{result.stderr}")
        return lines

    def expect_as_under_torchrun(self, program, package):
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"{package} is not installed")
        ours = self.lines_under([LOCKSTEP, "run"], program, package)
        self.assertTrue(ours[0].startswith("rank 0 of 2: ") and ours[1].startswith("rank 1 of 2: "), ours)
        weights = {line.split(": ")[1] for line in ours}
        self.assertEqual(len(weights), 1, "the ranks' weights differ")
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        self.assertEqual(ours, self.lines_under(torchrun, program, package))

    def test_accelerate(self):
        self.expect_as_under_torchrun(ACCELERATE, "accelerate")

    def test_lightning(self):
        self.expect_as_under_torchrun(LIGHTNING, "pytorch_lightning")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
