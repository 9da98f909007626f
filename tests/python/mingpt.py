"""Runs the example `mingpt` as users do: alone, in two processes, killed, with bad input.

usage: mingpt.py <lockstep program> <mingpt program>
"""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch

import mingpt_twin

LOCKSTEP, MINGPT = None, None

# Text that repeats with a long period: a few steps learn much of it.
TEXT = "".join(f"{i} times {i % 7} is {i * (i % 7)}; — so it is.\n" for i in range(400))
TINY = {
    "gpt_config.n_layer": 2, "gpt_config.n_head": 2, "gpt_config.n_embd": 32,
    "data_config.block_size": 16, "trainer_config.batch_size": 8,
}


class Mingpt(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "text.txt").write_text(TEXT, encoding="utf-8")

    def command(self, *arguments, ranks=1, name="run", launch=(), **settings):
        settings = TINY | {"data_config.path": self.folder / "text.txt",
                           "trainer_config.snapshot_path": self.folder / name} | settings
        launcher = [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", *launch]
        return [*(launcher if ranks > 1 else []), MINGPT, *arguments,
                *(f"{key}={value}" for key, value in settings.items())]

    def run_mingpt(self, *arguments, **where):
        return subprocess.run(self.command(*arguments, **where), capture_output=True, text=True,
                              timeout=200, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def train(self, *arguments, **where):
        result = self.run_mingpt(*arguments, **where)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    @staticmethod
    def train_losses(output):
        return [float(loss) for loss in re.findall(r"Train Loss ([\d.]+)", output)]

    @staticmethod
    def eval_line(output):
        return re.findall(r".*Eval Loss.*", output)[-1]

    def weights(self, name):
        newest = sorted((self.folder / name).glob("*.pt"))[-1]
        return torch.load(newest, weights_only=True)["model"]

    def assert_same_bits(self, one, other):
        one, other = self.weights(one), self.weights(other)
        self.assertEqual(one.keys(), other.keys())
        for name, tensor in one.items():
            self.assertTrue(torch.equal(tensor, other[name]), name)

    def test_two_ranks_learn_and_write_text(self):
        output = self.train(ranks=2, **{"trainer_config.max_steps": 200})
        losses = self.train_losses(output)
        self.assertGreater(losses[0], 2.2)
        self.assertLess(losses[-1], 1.5)
        self.assertLess(float(re.search(r"Eval Loss ([\d.]+)", output)[1]), 2.0)
        text = output.split("It writes:\n")[1]
        self.assertGreater(len(text), 150)
        self.assertRegex(text, r"times|is")

    def test_they_learn_what_the_twin_learns_from_the_same_pieces(self):
        steps, ranks, batch, rate = 20, 2, TINY["trainer_config.batch_size"], 1e-3
        output = self.train(ranks=ranks, **{
            "trainer_config.max_steps": steps, "trainer_config.log_every": 1,
            "optimizer_config.learning_rate": rate, "optimizer_config.warmup_steps": 0,
            "optimizer_config.final_learning_rate_factor": 1})

        block = TINY["data_config.block_size"]
        characters = sorted(set(TEXT))
        tokens = torch.tensor([characters.index(c) for c in TEXT])
        pieces = tokens[: int(len(tokens) * 0.9)].unfold(0, block + 1, 1)
        shards = [list(torch.utils.data.DistributedSampler(pieces, ranks, rank, seed=0))
                  for rank in range(ranks)]
        torch.manual_seed(0)
        twin = mingpt_twin.Gpt(2, 2, 32, len(characters), block)
        optimizer = mingpt_twin.make_optimizer(twin, rate)
        theirs = []
        for step in range(steps):
            chosen = [index for shard in shards for index in shard[step * batch:(step + 1) * batch]]
            theirs.append(mingpt_twin.train_step(twin, optimizer, pieces[chosen])[1])
        ours = self.train_losses(output)
        self.assertEqual(len(ours), steps)
        for our_loss, their_loss in zip(ours, theirs):
            self.assertAlmostEqual(our_loss, their_loss, delta=1e-4)

    def rank_1_of(self, launcher):
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                exe = os.readlink(f"/proc/{process}/exe")
                environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # Gone in between, or not ours to look at.
            if exe == MINGPT and b"RANK=1" in environment and self.is_below(int(process), launcher):
                return int(process)
        raise AssertionError("no process of rank 1")

    @staticmethod
    def is_below(process, ancestor):
        while process > 1 and process != ancestor:
            status = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
            process = int(status.rpartition(")")[2].split()[1])
        return process == ancestor

    def test_a_run_with_a_killed_rank_ends_like_one_without(self):
        # Dropout too: its random numbers go on where they were.
        settings = {"trainer_config.max_steps": 240, "trainer_config.save_every_steps": 20,
                    "gpt_config.resid_pdrop": 0.1, "gpt_config.attn_pdrop": 0.1}
        whole = self.train(ranks=2, name="whole", **settings)

        rest, code = self.kill_after("saved at step 40", ranks=2, name="killed", **settings)
        self.assertNotEqual(code, 0)
        self.assertNotIn("Eval Loss", rest)

        resumed = self.train(ranks=2, name="killed", **settings)
        self.assertRegex(resumed, r"Resuming training from snapshot .* at Epoch 1 \| Step \d+")
        self.assert_same_end(resumed, whole)
        self.assert_same_bits("killed", "whole")

        restarted, code = self.kill_after("saved at step 40", ranks=2, name="restarted",
                                          launch=["--max-restarts=1"], **settings)
        self.assertEqual(code, 0)
        self.assert_same_end(restarted, whole)
        self.assert_same_bits("restarted", "whole")

    def assert_same_end(self, one, other):
        self.assertEqual(self.eval_line(one), self.eval_line(other))
        self.assertEqual(one.split("It writes:")[1], other.split("It writes:")[1])

    def kill_after(self, text, **where):
        """Kills rank 1 when a line has this text. Gives what it prints then, and its status."""
        with subprocess.Popen(self.command(**where), stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True,
                              env=os.environ | {"OMP_NUM_THREADS": "1"}) as job:
            for line in job.stdout:
                if text in line:
                    os.kill(self.rank_1_of(job.pid), signal.SIGKILL)
                    break
            rest = job.stdout.read()
        return rest, job.returncode

    def test_it_resumes_in_any_epoch_and_over_gloo_with_the_same_bits(self):
        settings = {"data_config.truncate": 0.05, "trainer_config.max_epochs": 3,
                    "trainer_config.save_every_steps": 13}
        whole = self.train(ranks=2, name="whole", **settings)
        self.assertEqual(whole.count("Eval Loss"), 3)
        saved = [int(step) for step in re.findall(r"Snapshot saved at step (\d+)", whole)]
        self.assertEqual(saved[-1] % 3, 0)
        an_epoch = saved[-1] // 3
        self.assertIn(an_epoch, saved)

        # Away with the last snapshot, which is that of the end: it goes on from within the epoch.
        sorted((self.folder / "whole").glob("*.pt"))[-1].rename(self.folder / "end.pt")
        with unittest.mock.patch.dict(os.environ, LOCKSTEP_BACKEND="gloo"):
            resumed = self.train(ranks=2, name="whole", **settings)
            self.train(ranks=2, name="gloo", **settings)
        self.assertIn(f"at Epoch 3 | Step {saved[-2]}\n", resumed)
        self.assertEqual(self.eval_line(resumed), self.eval_line(whole))
        end = (self.folder / "end.pt").read_bytes()
        for name in ("whole", "gloo"):
            self.assertEqual(sorted((self.folder / name).glob("*.pt"))[-1].read_bytes(), end)

    def test_a_complete_training_stays_as_it_is(self):
        settings = {"trainer_config.max_steps": 10}
        first = self.train(**settings)
        again = self.train(**settings)
        self.assertNotIn("Train Loss", again)
        self.assertEqual(self.eval_line(first), self.eval_line(again))

    def test_another_number_of_ranks_goes_on_with_the_epoch(self):
        settings = {"trainer_config.save_every_steps": 0}
        self.train(ranks=2, **settings | {"trainer_config.max_steps": 10})
        output = self.train(ranks=1, **settings | {"trainer_config.max_steps": 11,
                                                   "trainer_config.log_every": 1})
        # 10 steps of two ranks are 20 of one.
        self.assertRegex(output, r"Epoch 1 \| Iter 21 \| Train Loss")

    def test_it_writes_from_a_snapshot(self):
        self.train(**{"trainer_config.max_steps": 100})
        arguments = ["--sample", "3 times", "--length", "30"]
        one = self.train(*arguments, "--top-k", "5")
        self.assertTrue(one.startswith("3 times"), one)
        self.assertEqual(len(one), len("3 times") + 30 + 1)
        self.assertEqual(one, self.train(*arguments, "--top-k", "5"))
        self.assertNotEqual(one, self.train(*arguments, "--top-k", "5", "--temperature", "3"))
        likeliest = self.train(*arguments, "--temperature", "0")
        self.assertEqual(likeliest, self.train(*arguments, "--top-k", "1"))
        file = sorted((self.folder / "run").glob("*.pt"))[-1]
        self.assertEqual(one, self.train(*arguments, "--top-k", "5",
                                         **{"trainer_config.snapshot_path": file}))

    def test_mixed_precision_learns_too(self):
        for precision in ("bf16", "fp16"):
            with self.subTest(precision=precision):
                losses = self.train_losses(self.train(
                    "--precision", precision, ranks=2, name=precision,
                    **{"trainer_config.max_steps": 60}))
                self.assertLess(losses[-1], losses[0] - 0.3)

    def test_a_file_of_settings_is_read_and_overridden(self):
        config = self.folder / "config.json"
        config.write_text('{"gpt_config": {"n_layer": 1}, "trainer_config": {"max_steps": 5}}')
        shown = self.train("--show-config", "--config", config, "--set",
                           "trainer_config.max_steps=7")
        self.assertIn("gpt_config.n_head=2\n", shown)
        self.assertIn("trainer_config.max_steps=7\n", shown)

    def test_the_guides_settings_are_taken(self):
        guide = pathlib.Path(__file__).parents[2] / "docs/guides/mingpt.md"
        guide = guide.read_text(encoding="utf-8")
        (self.folder / "gpt2.json").write_text(re.search(r"```json\n(.*?)```", guide, re.S)[1])
        commands = [shlex.split(line, comments=True)
                    for block in re.findall(r"```sh\n(.*?)```", guide, re.S)
                    for line in block.replace("\\\n", " ").splitlines()]
        commands = [words[words.index("mingpt") + 1:] for words in commands if "mingpt" in words]
        self.assertGreater(len(commands), 4)
        for arguments in commands:
            with self.subTest(arguments=arguments):
                result = subprocess.run([MINGPT, "--show-config", *arguments], cwd=self.folder,
                                        capture_output=True, text=True, timeout=60)
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_what_cannot_be_is_refused_in_one_line(self):
        broken = self.folder / "broken.json"
        broken.write_text('{"trainer_config": {"max_epohcs": 3}}')
        for arguments, message in (
            (["trainer_config.max_epoch=3"], "did you mean trainer_config.max_epochs?"),
            (["max_epochs=3"], "did you mean trainer_config.max_epochs?"),
            (["traner_config.seed=3"], "did you mean trainer_config?"),
            (["--config", str(broken)], "did you mean trainer_config.max_epochs?"),
            (["trainer_config.max_epochs=many"],
             'must be an integer from 1 to 2147483647, not "many"'),
            (["trainer_config.precision=fp8"], 'must be fp32, bf16 or fp16, not "fp8"'),
            (["gpt_config.n_head=3"], "n_embd 32 does not divide by n_head 3"),
            (["data_config.truncate=0.001"], "give more text or a smaller block_size"),
            (["--sample", "3", "trainer_config.snapshot_path=absent"], "no whole snapshot"),
            (["--lenght", "3"], "--lenght"),
        ):
            with self.subTest(arguments=arguments):
                settings = [each for each in self.command() if "=" not in str(each)
                            or str(each).split("=")[0] not in arguments[-1]]
                result = subprocess.run([*settings, *arguments], capture_output=True, text=True,
                                        timeout=60)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(message, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_a_snapshot_of_another_model_is_refused(self):
        self.train(**{"trainer_config.max_steps": 2})
        result = self.run_mingpt(**{"trainer_config.max_steps": 3, "gpt_config.n_head": 4})
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("it is of a model of another shape", result.stderr)


if __name__ == "__main__":
    LOCKSTEP, MINGPT = sys.argv[1:3]
    MINGPT = os.path.realpath(MINGPT)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
