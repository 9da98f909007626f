"""Runs the example `mingpt` as users do: alone, in two processes, with settings and bad input.

usage: mingpt.py <lockstep program> <mingpt program>
"""

import math
import pathlib
import re
import shlex
import subprocess
import sys

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
import mingpt_twin
from mingpt_run import TEXT, TINY, MingptTestCase, main


class Mingpt(MingptTestCase):
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
        # Epochs end with smaller batches, and the ranks have different numbers of test pieces.
        steps, ranks, batch, seed = 20, 2, TINY["trainer_config.batch_size"], 3
        truncate, split = 0.07, 0.25
        rate, warmup, last = 2e-3, 5, 0.1
        output = self.train(ranks=ranks, **{
            "data_config.truncate": truncate, "data_config.train_split": split,
            "trainer_config.max_epochs": 2, "trainer_config.max_steps": steps,
            "trainer_config.log_every": 1, "trainer_config.seed": seed,
            "optimizer_config.learning_rate": rate, "optimizer_config.warmup_steps": warmup,
            "optimizer_config.final_learning_rate_factor": last})

        block = TINY["data_config.block_size"]
        text = TEXT[: int(len(TEXT) * truncate)]
        characters = sorted(set(text))
        tokens = torch.tensor([characters.index(c) for c in text])
        train_part = int(len(tokens) * split)
        pieces = tokens[:train_part].unfold(0, block + 1, 1)
        samplers = [torch.utils.data.DistributedSampler(pieces, ranks, rank, seed=seed)
                    for rank in range(ranks)]
        torch.manual_seed(seed)
        twin = mingpt_twin.Gpt(2, 2, 32, len(characters), block)
        optimizer = mingpt_twin.make_optimizer(twin, rate)
        theirs = []
        for epoch in range(2):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            shards = [list(sampler) for sampler in samplers]
            self.assertNotEqual(len(shards[0]) % batch, 0)
            for at in range(0, len(shards[0]), batch)[: steps - len(theirs)]:
                step = len(theirs)
                share = last + (1 - last) * (
                    1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
                for group in optimizer.param_groups:
                    group["lr"] = rate * ((step + 1) / warmup if step < warmup else share)
                chosen = [index for shard in shards for index in shard[at:at + batch]]
                theirs.append(mingpt_twin.train_step(twin, optimizer, pieces[chosen])[1])
        ours = self.train_losses(output)
        self.assertEqual(len(ours), steps)
        for our_loss, their_loss in zip(ours, theirs):
            self.assertAlmostEqual(our_loss, their_loss, delta=1e-4)

        held_out = tokens[train_part:].unfold(0, block + 1, block)
        self.assertEqual(len(held_out) % 2, 1)
        with torch.no_grad():
            their_loss = twin(held_out[:, :-1], held_out[:, 1:])[1].item()
        self.assertAlmostEqual(float(self.eval_line(output).split()[-1]), their_loss, delta=1e-4)

    def test_mixed_precision_learns_too(self):
        losses = {}
        for precision in ("fp32", "bf16", "fp16"):
            with self.subTest(precision=precision):
                losses[precision] = self.train_losses(self.train(
                    "--precision", precision, ranks=2, name=precision,
                    **{"trainer_config.max_steps": 60}))
                self.assertLess(losses[precision][-1], losses[precision][0] - 0.3)
                for loss, float32_loss in zip(losses[precision], losses["fp32"]):
                    self.assertAlmostEqual(loss, float32_loss, delta=0.1)
        self.assertEqual(len(set(map(tuple, losses.values()))), 3, losses)

    def test_a_file_of_settings_is_read_and_overridden(self):
        config = self.folder / "config.json"
        config.write_text('{"gpt_config": {"n_layer": 1}, "trainer_config": {"max_steps": 5}}')
        shown = self.train("--show-config", "--config", config, "--set",
                           "trainer_config.max_steps=7")
        self.assertIn("gpt_config.n_head=2\n", shown)
        self.assertIn("trainer_config.max_steps=7\n", shown)

    def test_the_guides_commands(self):
        guide = pathlib.Path(__file__).parents[3] / "docs/guides/mingpt.md"
        text = guide.read_text(encoding="utf-8")
        (self.folder / "gpt2.json").write_text(re.search(r"```json\n(.*?)```", text, re.S)[1])
        commands = [shlex.split(line, comments=True)
                    for block in re.findall(r"```sh\n(.*?)```", text, re.S)
                    for line in block.replace("\\\n", " ").splitlines()]
        commands = [words[words.index("mingpt") + 1:] for words in commands if "mingpt" in words]
        self.assertGreater(len(commands), 4)
        small = [f"{key}={value}" for key, value in (TINY | {
            "data_config.path": guide, "data_config.truncate": 1,
            "trainer_config.snapshot_path": "run", "trainer_config.max_steps": 4}).items()]
        for arguments in sorted(commands, key=lambda words: "--sample" in words):
            with self.subTest(arguments=arguments):
                result = subprocess.run([self.mingpt, "--show-config", *arguments], cwd=self.folder,
                                        capture_output=True, text=True, timeout=60)
                self.assertEqual(result.returncode, 0, result.stderr)
                result = subprocess.run([self.mingpt, *arguments, *small], cwd=self.folder,
                                        capture_output=True, text=True, timeout=60)
                self.assertEqual(result.returncode, 0, result.stderr)
                if "--sample" not in arguments:
                    self.assertIn("[RANK0] Step 4 | Eval Loss", result.stdout)

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
            (["optimizer_config.beta1=1"], "must be a number from 0 to below 1, not 1"),
            (["gpt_config.n_head=3"], "n_embd 32 does not divide by n_head 3"),
            (["data_config.truncate=0.001"], "give more text or a smaller block_size"),
            (["--sample", "3", "trainer_config.snapshot_path=absent"], "no whole snapshot"),
            (["--lenght", "3"], "--lenght"),
            (["--length", "3"], "requires --sample"),
            (["--sample", "3", "--length", "010"], "must be an integer from 0 to 1000000, not 010"),
            (["--sample", "3", "--temperature", "inf"], "must be a number of at least 0, not inf"),
            (["--sample", "3", "--top-k", "0"], "must be an integer from 1 to"),
            (["--config", str(self.folder)], "cannot be read; give a file of JSON"),
        ):
            with self.subTest(arguments=arguments):
                settings = [each for each in self.command() if "=" not in str(each)
                            or str(each).split("=")[0] not in arguments[-1]]
                result = subprocess.run([*settings, *arguments], capture_output=True, text=True,
                                        timeout=60)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(message, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


if __name__ == "__main__":
    main()
