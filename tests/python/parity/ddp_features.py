"""Every behaviour of DistributedDataParallel beside PyTorch's, with the same weights and batches.

    ddp_features.py PATH_OF_FEATURES_WORKER PATH_OF_LOCKSTEP

Jobs of 2 and 3 ranks (ALL_CASES: 1 to 4), ours on gloo and on shm; the cases are in
ddp_features_pytorch.py. With one or two ranks gradients, parameters and buffers must be PyTorch's bits
on every rank, as a sum of two numbers has one order; with three or four they may differ by what
rounding does in another order. Where we differ from PyTorch on purpose, or it refuses, the test says
so below.
"""

import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch

import ddp_features_modules
import ddp_features_pytorch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import ALL_CASES
from pytorch_ranks import run_pytorch_ranks

WORKER, LOCKSTEP = sys.argv[1:3]
BACKENDS = ("gloo", "shm")
NUMBERS_OF_RANKS = (1, 2, 3, 4) if ALL_CASES else (2, 3)
# What PyTorch 2.13 refuses or fails in; we do it.
REFUSED = {
    "no_sync in the first step of a static graph": "INTERNAL ASSERT FAILED",
    "unused parameters without an option": "Expected to have finished reduction",
    "checkpoints without static_graph": "Expected to mark a variable ready only once",
    "SyncBatchNorm on the CPU": "SyncBatchNorm layers only work with GPU modules",
    "parameters used outside of forward": "Expected to mark a variable ready only once",
    "double backward": "a leaf Variable that requires grad is being used in an in-place operation",
    "batched PowerSGD": "",  # An assertion about the shape of its own matrix.
    # We refuse these too.
    "nothing to train": "doesn't have any parameter that requires a gradient",
    "delayed parameters without one to follow": "need to be set at the same time",
}
# Ours by its name, PyTorch's by another: the same without the option that PyTorch needs.
SAME_AS = {
    "join/hook": "join/plain",
    "unused_without_option": "unused",
    "checkpoint_without_static_graph": "static_graph/checkpoint",
    "exchange_dtype/fp16": "hooks/fp16",
    "exchange_dtype/bf16": "hooks/bf16",
}
# PyTorch's by other names: options of which we have no need.
ALSO = {"plain": "batched_grad_copy", "static_graph/plain": "skip_all_reduce_unused_params"}
# Relative to the largest element of a tensor, where it is not the bits or the order of a sum.
ROUNDED = {
    "exchange_dtype/fp16": 2e-3,
    "exchange_dtype/bf16": 2e-2,
    "hooks/fp16": 2e-3,
    "hooks/bf16": 2e-2,
    "power/full": 1e-5,  # An approximation of full rank, from another random start.
    # One process on the batches of all ranks.
    "join/weighted": 1e-5,
    "join/accumulation": 1e-5,
    "weighted": 1e-5,
    "sync_batch_norm": 1e-5,
    "double_backward": 1e-5,
}
# Compared in ways of their own.
SPECIAL = ("buffers/on", "ignored", "hooks/per_tensor", "hooks/per_channel", "power/low", "power/batched")
torch.set_num_threads(1)  # Ranks are forked from here.


def lookup(table, name):
    """The entry of the longest of the table's keys that the name begins with."""
    keys = [key for key in table if name == key or name.startswith(key + "/")]
    return max(keys, key=len) if keys else None


def renamed(table, name):
    key = lookup(table, name)
    return name if key is None else table[key] + name[len(key):]


def of_each_job(test):
    """Of all of our jobs, each with PyTorch's of as many ranks."""

    @functools.wraps(test)
    def run(self):
        for (backend, ranks), ours in self.ours.items():
            with self.subTest(backend=backend, ranks=ranks):
                test(self, backend, ranks, ours, self.pytorch[ranks])

    return run


class Features(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        folder = directory.name
        ddp_features_modules.write_weights(folder)
        cls.pytorch = {}
        cls.ours = {}
        for ranks in NUMBERS_OF_RANKS:
            run_pytorch_ranks(ddp_features_pytorch.run_rank, (ranks, folder), ranks)
            cls.pytorch[ranks] = [torch.load(f"{folder}/pytorch.{ranks}.{rank}")
                                  for rank in range(ranks)]
            for backend in BACKENDS:
                output = f"{folder}/{backend}.{ranks}"
                subprocess.run([LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", WORKER,
                                folder, output], check=True, timeout=300,
                               env=os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_BACKEND": backend})
                cls.ours[backend, ranks] = [torch.load(f"{output}.{rank}")["extra"]
                                            for rank in range(ranks)]

    def assert_close(self, actual, expected, relative, what):
        self.assertEqual((actual.dtype, actual.shape), (expected.dtype, expected.shape), what)
        if relative == 0:
            if not torch.equal(actual, expected):  # Writing out all that is equal would take most of the time.
                self.fail(f"{what}: {actual} is not {expected}")
            return
        error = (actual.double() - expected.double()).abs().max().item()
        bound = relative * expected.double().abs().max().item()
        if not error <= bound:
            self.fail(f"{what}: {error} is more than {bound}: {actual} is not {expected}")

    def tolerance(self, name, backend, ranks):
        key = lookup(ROUNDED, name)
        if ranks == 1 and name.startswith("hooks/"):
            return 0
        if key in ("hooks/fp16", "hooks/bf16") and ranks == 2:
            return 0
        if key in ("exchange_dtype/fp16", "exchange_dtype/bf16") and (backend, ranks) == ("gloo", 2):
            return 0
        if key:
            return ROUNDED[key]
        if ranks <= 2:
            return 0
        # Of bfloat16 Gloo rounds each addition, shm the sum.
        return 2e-2 if name.startswith("dtypes/") else 2e-6

    @of_each_job
    def test_everything_that_pytorch_does(self, backend, ranks, ours, pytorch):
        for rank in range(ranks):
            compared = set()
            for name, actual in ours[rank].items():
                if lookup(SPECIAL, name) is not None:
                    continue
                for theirs in {renamed(SAME_AS, name), renamed(SAME_AS, renamed(ALSO, name))}:
                    self.assertIn(theirs, pytorch[rank])
                    compared.add(theirs)
                    self.assert_close(actual, pytorch[rank][theirs],
                                      self.tolerance(name, backend, ranks),
                                      f"{name} and {theirs} on rank {rank}")
            # No gradient of ours is missing where PyTorch has one.
            missing = {name for name in pytorch[rank].keys() - compared
                       if lookup((*SPECIAL, "refused", "wrong"), name) is None}
            self.assertEqual(missing, set())

    def test_what_pytorch_refuses(self):
        for ranks, results in self.pytorch.items():
            for rank in range(ranks):
                refused = {name.removeprefix("refused/"): message for name, message
                           in results[rank].items() if name.startswith("refused/")}
                self.assertEqual(refused.keys(), REFUSED.keys())
                for name, words in REFUSED.items():
                    self.assertIn(words, refused[name])

    @of_each_job
    def test_replicas_are_the_same_bits(self, backend, ranks, ours, pytorch):
        # Not those that are told apart on purpose.
        apart = ("init_sync", "ignored", "buffers/off", "buffers/own", "hooks/noop", "local_sgd", "power")
        for rank in range(1, ranks):
            for name, value in ours[rank].items():
                if lookup(apart, name) is None and name in ours[0]:
                    self.assert_close(value, ours[0][name], 0, f"{name} on rank {rank}")

    @of_each_job
    def test_buffers(self, backend, ranks, ours, pytorch):
        """After a step PyTorch leaves each rank its own running statistics, and gives it rank 0's in the
        next forward. Ours agree whenever a step ends: a snapshot then holds no rank's own."""
        for rank in range(ranks):
            for name, actual in ours[rank].items():
                if lookup(("buffers/on", "ignored"), name) is None:
                    continue
                is_buffer = "/end/norm." in name and not name.endswith(("weight", "bias"))
                is_ignored = name == "ignored/end/norm.running_mean"
                of_rank = 0 if is_buffer and not is_ignored else rank
                self.assert_close(actual, pytorch[of_rank][name],
                                  self.tolerance(name, backend, ranks),
                                  f"{name} on rank {rank}")
            if rank > 0:
                name = "buffers/on/end/norm.running_mean"
                self.assertFalse(torch.equal(pytorch[rank][name], pytorch[0][name]))

    def test_what_pytorch_gets_wrong(self):
        """Ours, compared above, are what they should be."""
        for ranks, pytorch in self.pytorch.items():
            if ranks == 1:
                continue
            for rank in range(ranks):
                # PyTorch's hooks know nothing of ranks without data, and divide by all.
                for name in pytorch[rank]:
                    if name.startswith("wrong/join_with_hook/end/"):
                        without = pytorch[rank][name.replace("wrong/join_with_hook", "join/plain")]
                        self.assertFalse(torch.allclose(pytorch[rank][name], without, rtol=1e-3), name)
            # A rank whose batches end within a step of several loses what it has accumulated.
            for name in pytorch[1]:
                if name.startswith("wrong/join_with_accumulation/"):
                    right = pytorch[1][name.replace("wrong/join_with_accumulation", "join/accumulation")]
                    self.assertFalse(torch.allclose(pytorch[1][name], right, rtol=1e-3), name)

    @of_each_job
    def test_quantization(self, backend, ranks, ours, pytorch):
        """Within half a step of each rank of the average; so PyTorch's, whose steps are never finer: its
        range takes in 0."""
        names = [name for name in ours[0] if name.startswith("hooks/noop/0/")]
        own = [{name: ours[rank][name] for name in names} for rank in range(ranks)]
        flat = [torch.cat([value.flatten() for value in of_rank.values()]) for of_rank in own]
        half_step = sum((f.max() - f.min()).item() for f in flat) / ranks / 255 / 2
        their_step = sum((f.max().clamp(min=0) - f.min().clamp(max=0)).item()
                         for f in flat) / ranks / 255
        for name in names:
            average = sum(of_rank[name] for of_rank in own) / ranks
            for kind in ("per_tensor", "per_channel"):
                quantized = name.replace("noop", kind)
                for results, bound in ((ours, half_step), (pytorch, their_step)):
                    error = (results[0][quantized] - average).abs().max().item()
                    self.assertLessEqual(error, bound * 1.001, quantized)
                self.assertGreater((ours[0][quantized] - average).abs().max().item(), 0)

    @of_each_job
    def test_power_sgd_of_low_rank(self, backend, ranks, ours, pytorch):
        """Both begin with random numbers of their own, and end about equally well."""
        def mean_loss(results, name):
            return sum(of_rank[f"power/{name}/loss"].item() for of_rank in results) / ranks

        theirs = mean_loss(pytorch, "low")
        self.assertLess(abs(mean_loss(ours, "low") - theirs), 0.1 * theirs)
        self.assertLess(mean_loss(ours, "batched"), 3 * theirs)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
