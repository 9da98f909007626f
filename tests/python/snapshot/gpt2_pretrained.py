"""GPT-2 between Lockstep and transformers, both ways, by sharded safetensors.

    gpt2_pretrained.py PATH_OF_GPT2_WORKER LOCKSTEP

Fine-tuning: the example gpt2_finetune, fully sharded on two ranks, beside the same steps in Python. ALL_CASES: with
the published model's 124 million parameters, too.
"""

import os
import pathlib
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

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import some

ROOT = str(pathlib.Path(__file__).resolve().parents[3])
TEXT = os.path.join(ROOT, "examples", "data", "sonnets.txt")
WORKER = LOCKSTEP = ""
BATCH, LENGTH, LR = 2, 16, 1e-3
CONFIGS = {"small": {"n_layer": 3, "n_head": 4, "n_embd": 32, "vocab_size": 300, "n_positions": 16}, "124M": {}}


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


    def batch(self, step):
        """Of both ranks: each byte is the token that the published vocabulary has for it."""
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        order = printed + [byte for byte in range(256) if byte not in printed]
        with open(TEXT, "rb") as file:
            text = torch.tensor([order.index(byte) for byte in file.read()])
        begins = [i * LENGTH % (len(text) - LENGTH) for i in range(step * 2 * BATCH, (step + 1) * 2 * BATCH)]
        return torch.stack([text[begin:begin + LENGTH + 1] for begin in begins])

    def finetune(self, folder, steps, target):
        done = subprocess.run(
            [LOCKSTEP, "run", "--standalone", "--nproc-per-node=2", os.path.join(os.path.dirname(LOCKSTEP), "gpt2_finetune"),
             "--model", self.path(folder), "--text", TEXT, "--save", self.path(target), f"--steps={steps}",
             f"--batch-size={BATCH}", f"--length={LENGTH}", f"--lr={LR}", "--shards=3"],
            capture_output=True, text=True, timeout=250, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"step {steps} loss", done.stdout)

    def finetune_in_python(self, model, steps):
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        for step in range(steps):
            batch = self.batch(step)
            optimizer.zero_grad()
            logits = model(batch[:, :-1]).logits
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    def logits(self, model):
        with torch.no_grad():
            return model(self.tokens).logits

    def test_fully_sharded_training_goes_on_in_python_and_back(self):
        # Steps of Adam enlarge rounding: of logits beyond 1 the same part may differ.
        def most(model):
            return 1e-4 * max(1, self.logits(model).abs().max().item())

        for name in some(list(CONFIGS), every=2):
            with self.subTest(name):
                torch.manual_seed(5)
                model = GPT2LMHeadModel(GPT2Config(**CONFIGS[name], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
                if name == "small":
                    with torch.no_grad():
                        for parameter in model.parameters():
                            parameter.add_(torch.randn_like(parameter), alpha=0.1)
                model.save_pretrained(self.path("a" + name), max_shard_size="20KB" if name == "small" else "200MB")
                self.assertTrue(os.path.exists(self.path(f"a{name}/model.safetensors.index.json")))
                self.finetune("a" + name, 3, "b" + name)
                self.finetune_in_python(model, 3)
                other = self.load(self.path("b" + name))
                self.assert_close(self.logits(other), self.logits(model), most(model))
                self.assert_close(self.logits_of_lockstep(self.path("b" + name)), self.logits(other), 1e-4)
                self.finetune_in_python(other, 1)
                other.save_pretrained(self.path("c" + name))
                self.finetune("c" + name, 1, "d" + name)
                self.finetune_in_python(other, 1)
                self.assert_close(self.logits(self.load(self.path("d" + name))), self.logits(other), most(other))


if __name__ == "__main__":
    WORKER, LOCKSTEP = map(os.path.abspath, sys.argv[1:3])
    del sys.argv[1:3]
    unittest.main()
