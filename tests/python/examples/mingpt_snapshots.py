"""Runs the example `mingpt`, kills it, and goes on from its snapshots.

usage: mingpt_snapshots.py <lockstep program> <mingpt program>
"""

import os
import pathlib
import re
import sys
import unittest.mock

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from killed_rank import assert_same_bits, run_and_kill
from mingpt_run import TEXT, MingptTestCase, main


class Snapshots(MingptTestCase):
    def weights(self, name):
        newest = sorted((self.folder / name).glob("*.pt"))[-1]
        return torch.load(newest, weights_only=True)["model"]

    def test_a_run_with_a_killed_rank_ends_like_one_without(self):
        # Dropout too: its random numbers go on where they were.
        settings = {"trainer_config.max_steps": 480, "trainer_config.save_every_steps": 20,
                    "gpt_config.resid_pdrop": 0.1, "gpt_config.attn_pdrop": 0.1}
        whole = self.train(ranks=2, name="whole", **settings)

        rest, code = self.kill_after("saved at step 40", ranks=2, name="killed", **settings)
        self.assertNotEqual(code, 0)
        self.assertNotIn("Eval Loss", rest)

        resumed = self.train(ranks=2, name="killed", **settings)
        self.assertRegex(resumed, r"Resuming training from snapshot .* at Epoch 1 \| Step \d+")
        self.assert_same_end(resumed, whole)
        assert_same_bits(self, self.weights("killed"), self.weights("whole"))

        restarted, code = self.kill_after("saved at step 40", ranks=2, name="restarted",
                                          launch=["--max-restarts=1"], **settings)
        self.assertEqual(code, 0)
        self.assert_same_end(restarted, whole)
        assert_same_bits(self, self.weights("restarted"), self.weights("whole"))

    def assert_same_end(self, one, other):
        self.assertEqual(self.eval_line(one), self.eval_line(other))
        self.assertEqual(one.split("It writes:")[1], other.split("It writes:")[1])

    def kill_after(self, text, **where):
        """Kills rank 1 when a line has this text. Gives what it prints then, and its status."""
        code, _, rest = run_and_kill(self.command(**where), text, self.mingpt,
                                     env=os.environ | {"OMP_NUM_THREADS": "1"})
        return "".join(f"{line}\n" for line in rest), code

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
        first = self.train(**settings | {"gpt_config.resid_pdrop": 0.5})
        # Nor does dropout change what its model is found to be worth.
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

    def test_snapshots_of_epochs_are_as_rare_as_asked_for(self):
        output = self.train(**{"data_config.truncate": 0.02, "trainer_config.max_epochs": 5,
                               "trainer_config.save_every": 2,
                               "trainer_config.save_every_steps": 0})
        saved = [int(step) for step in re.findall(r"Snapshot saved at step (\d+)", output)]
        self.assertEqual([step / saved[0] for step in saved], [1, 2, 2.5])

    def test_it_writes_from_a_snapshot(self):
        self.train(**{"trainer_config.max_steps": 100, "trainer_config.save_every_steps": 50})
        arguments = ["--sample", "3 times", "--length", "30"]
        one = self.train(*arguments, "--top-k", "5")
        self.assertTrue(one.startswith("3 times"), one)
        self.assertEqual(len(one), len("3 times") + 30 + 1)
        self.assertEqual(one, self.train(*arguments, "--top-k", "5"))
        self.assertNotEqual(one, self.train(*arguments, "--top-k", "5", "--temperature", "3"))
        likeliest = self.train(*arguments, "--temperature", "0")
        self.assertEqual(likeliest, self.train(*arguments, "--top-k", "1"))
        older, newest = sorted((self.folder / "run").glob("*.pt"))[-2:]
        self.assertEqual(one, self.train(*arguments, "--top-k", "5",
                                         **{"trainer_config.snapshot_path": newest}))
        of_older = self.train(*arguments, "--top-k", "5",
                              **{"trainer_config.snapshot_path": older})
        self.assertNotEqual(one, of_older)
        newest.write_bytes(newest.read_bytes()[:-1])
        self.assertEqual(of_older, self.train(*arguments, "--top-k", "5"))

    def test_the_scale_of_a_loss_neither_counts_for_clipping_nor_is_forgotten(self):
        settings = {"trainer_config.log_every": 1, "trainer_config.precision": "fp16",
                    "optimizer_config.warmup_steps": 0,
                    "optimizer_config.final_learning_rate_factor": 1}
        # Their gradients have norms around 1.
        clipped, whole = (self.train(name=f"{most}", **settings | {
            "trainer_config.max_steps": 20, "trainer_config.grad_norm_clip": most})
            for most in (1000, 0))
        self.assertEqual(self.train_losses(clipped), self.train_losses(whole))
        for steps in (10, 20):
            self.train(name="resumed", **settings | {
                "trainer_config.max_steps": steps, "trainer_config.grad_norm_clip": 0})
        self.assertEqual(*(sorted((self.folder / name).glob("*.pt"))[-1].read_bytes()
                           for name in ("0", "resumed")))

    def test_a_snapshot_of_another_model_or_text_is_refused(self):
        self.train(**{"trainer_config.max_steps": 2})
        other_text = self.folder / "other.txt"
        other_text.write_text(TEXT.replace("—", "–"), encoding="utf-8")
        for settings, words in (({"gpt_config.n_head": 4}, "a model of another shape"),
                                ({"data_config.path": other_text}, "a text of other characters")):
            result = self.run_mingpt(**{"trainer_config.max_steps": 3} | settings)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"it is of {words}", result.stderr)


if __name__ == "__main__":
    main()
