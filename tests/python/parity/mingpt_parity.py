"""Compares the example `mingpt` with its twin in PyTorch: first weights, logits, losses, state.

usage: mingpt_parity.py <gpt_worker program>
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
import mingpt_twin

WORKER = None


class SameAsPyTorch(unittest.TestCase):
    CONFIG = {"n_layer": 3, "n_head": 4, "n_embd": 32, "vocab_size": 61, "block_size": 24}
    SEED = 5

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train_both(self):
        torch.manual_seed(self.SEED)
        twin = mingpt_twin.Gpt(**self.CONFIG)
        first = {name: tensor.clone() for name, tensor in twin.state_dict().items()}
        # Other weights than the seed's, so that those exchanged are seen to arrive.
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        shape = (20, 6, self.CONFIG["block_size"] + 1)
        batches = torch.randint(0, self.CONFIG["vocab_size"], shape)
        torch.save({"model": twin.state_dict(), "config": self.CONFIG, "seed": self.SEED,
                    "learning_rate_1e6": 1000, "batches": batches}, self.folder / "input.pt")
        subprocess.run([WORKER, self.folder / "input.pt", self.folder / "output.pt"], check=True,
                       timeout=120)
        ours = torch.load(self.folder / "output.pt", weights_only=True)

        optimizer = mingpt_twin.make_optimizer(twin, 1e-3)
        steps = [mingpt_twin.train_step(twin, optimizer, pieces) for pieces in batches]
        return ours, twin, optimizer, first, steps

    def test_the_same_seed_gives_the_same_first_weights(self):
        ours, _, _, first, _ = self.train_both()
        for name, tensor in first.items():
            self.assertTrue(torch.equal(ours["extra"]["first." + name], tensor), name)

    def test_weights_of_python_give_its_logits_and_after_20_steps_its_losses(self):
        ours, twin, _, _, steps = self.train_both()
        torch.testing.assert_close(ours["extra"]["logits"], steps[0][0], rtol=0, atol=1e-5)
        losses = torch.tensor([loss for _, loss in steps])
        self.assertLess(losses[-1], losses[0])
        self.assertAlmostEqual(ours["extra"]["losses"][0].item(), losses[0].item(), delta=1e-5)
        torch.testing.assert_close(ours["extra"]["losses"], losses, rtol=0, atol=1e-4)
        for name, tensor in twin.state_dict().items():
            # A bias of keys changes no attention: its gradient is rounding, which AdamW enlarges.
            if not name.endswith("in_proj_bias"):
                torch.testing.assert_close(ours["model"][name], tensor, rtol=0, atol=1e-4)

    def test_python_goes_on_from_our_weights_and_optimizer(self):
        ours, twin, optimizer, _, _ = self.train_both()
        decays = [len(group["params"]) for group in optimizer.param_groups]
        twin.load_state_dict(ours["model"])
        optimizer.load_state_dict(ours["optimizer"])
        self.assertEqual([len(group["params"]) for group in optimizer.param_groups], decays)
        self.assertEqual([group["weight_decay"] for group in optimizer.param_groups], [0.1, 0.0])
        self.assertEqual(optimizer.param_groups[0]["betas"], (0.9, 0.95))
        mingpt_twin.train_step(twin, optimizer, torch.ones(2, 5, dtype=torch.int64))


if __name__ == "__main__":
    WORKER = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
