"""GPT-2 between Lockstep and transformers, both ways, by sharded safetensors.

    gpt2_pretrained.py PATH_OF_GPT2_WORKER
"""

import os
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"  # The network is not needed, so it must not be waited for.

import torch

try:
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError:
    GPT2LMHeadModel = None

WORKER = ""


@unittest.skipUnless(GPT2LMHeadModel, "the package transformers is not installed")
class Pretrained(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = directory.name
        self.tokens = torch.arange(3 * 16).reshape(3, 16) * 7 % 101
        torch.save({"tokens": self.tokens}, self.path("tokens.pt"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def work(self, *arguments):
        done = subprocess.run([WORKER, *arguments], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def model(self):
        torch.manual_seed(4)
        model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=4, n_embd=32, vocab_size=101, n_positions=16))
        with torch.no_grad():
            for parameter in model.parameters():  # Other norms and biases than ones and zeros.
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return model.eval()

    def logits_of_lockstep(self, folder):
        self.work("logits", folder, self.path("tokens.pt"), self.path("logits.pt"))
        return torch.load(self.path("logits.pt"), weights_only=True)["logits"]

    def assert_close(self, found, expected, most):
        self.assertEqual(found.shape, expected.shape)
        self.assertLess((found - expected).abs().max().item(), most)
        self.assertGreater(expected.abs().max().item(), 1)

    def load(self, folder):
        model, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
        for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(report[keys], keys)
        return model.eval()

    @torch.no_grad()
    def test_lockstep_computes_what_transformers_computes(self):
        model = self.model()
        expected = model(self.tokens).logits
        for size in ("20KB", "1GB"):
            folder = self.path("saved" + size)
            model.save_pretrained(folder, max_shard_size=size)
            self.assertEqual(os.path.exists(os.path.join(folder, "model.safetensors.index.json")), size == "20KB")
            self.assert_close(self.logits_of_lockstep(folder), expected, 1e-4)

    @torch.no_grad()
    def test_transformers_computes_what_lockstep_computes(self):
        for shards in ("1", "4"):
            folder = self.path("made" + shards)
            self.work("make", folder, shards)
            self.assert_close(self.load(folder)(self.tokens).logits, self.logits_of_lockstep(folder), 1e-4)

    def train(self, model, steps):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(self.tokens, labels=self.tokens).loss.backward()
            optimizer.step()

    def test_training_goes_on_in_the_other_language(self):
        model = self.model()
        model.save_pretrained(self.path("begin"), max_shard_size="20KB")
        self.train(model, 5)
        self.work("train", self.path("begin"), self.path("tokens.pt"), "3", self.path("between"))
        other = self.load(self.path("between"))
        self.train(other, 1)
        other.save_pretrained(self.path("later"))
        self.work("train", self.path("later"), self.path("tokens.pt"), "1", self.path("end"))
        with torch.no_grad():
            self.assert_close(self.load(self.path("end"))(self.tokens).logits, model(self.tokens).logits, 1e-4)


if __name__ == "__main__":
    WORKER = sys.argv.pop(1)
    unittest.main()
