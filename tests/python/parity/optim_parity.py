"""Clipping, averaged weights and the sharded optimizer beside PyTorch's, bit for bit.

    optim_parity.py PATH_OF_OPTIM_WORKER PATH_OF_LOCKSTEP
"""

import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from pytorch_ranks import run_pytorch_ranks

WORKER, LOCKSTEP = sys.argv[1:3]
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}
SHAPES = [(3, 5), (1,), (0,), (1009,), (257, 130)]
DTYPES = {"Float": torch.float32, "Double": torch.float64, "BFloat16": torch.bfloat16}
torch.set_num_threads(1)


def formula(shape, phase):
    values = torch.arange(math.prod(shape), dtype=torch.float32) * 0.7 + phase
    return values.sin().view(shape)


def parameters_with_gradients(dtype):
    parameters = []
    for i, shape in enumerate(SHAPES):
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
        parameter.grad = formula(shape, float(i)).to(dtype)
        parameters.append(parameter)
    return parameters


class Weights(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for i, shape in enumerate(SHAPES):
            self.register_parameter(f"p{i}", torch.nn.Parameter(torch.zeros(shape)))
        self.low = torch.nn.Parameter(torch.zeros(7, dtype=torch.bfloat16))
        self.register_buffer("mean", torch.zeros(11))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def set(self, step):
        phase = 10 * step
        for tensor in self.parameters():
            tensor.copy_(formula(tensor.shape, phase))
            phase += 1
        self.mean.copy_(formula((11,), phase))
        self.count.fill_(3 * step)


def zero_redundancy_rank(rank, world_size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=world_size)
    for kind, (optimizer_class, options) in OPTIMIZERS.items():
        parameters = parameters_with_gradients(torch.float32)
        optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class, **options)
        for step in range(5):
            for i, parameter in enumerate(parameters):
                parameter.grad = formula(SHAPES[i], i + 10.0 * step)
            optimizer.step()
        # By hand: consolidate_state_dict() does not work without NumPy.
        own = {i: optimizer.optim.state[parameter] for i, parameter in enumerate(parameters)
               if parameter in optimizer.optim.state}
        torch.save(([parameter.detach() for parameter in parameters], own),
                   f"{folder}/{kind}.{rank}.pt")
    dist.barrier()
    # Past PyTorch's own clean-up, in which a thread of its sometimes ends the process.
    os._exit(0)


class Parity(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = directory.name

    def results(self, command):
        path = os.path.join(self.folder, "results.pt")
        subprocess.run([WORKER, command, path], check=True, timeout=60,
                       env=os.environ | {"OMP_NUM_THREADS": "1"})
        return torch.load(path)["extra"]

    def assert_same_bits(self, actual, expected, name):
        self.assertEqual(actual.dtype, expected.dtype, name)
        if not torch.equal(actual, expected):
            self.fail(f"{name}: {actual} is not {expected}")

    def assert_gradients(self, results, name, parameters):
        for i, parameter in enumerate(parameters):
            self.assert_same_bits(results[f"{name}.{i}"], parameter.grad, f"{name}.{i}")

    def test_clipped_gradients(self):
        results = self.results("clip")
        for dtype_name, dtype in DTYPES.items():
            for norm_type in (0.0, 0.5, 1.0, 2.0, 3.0):
                for max_norm in (0.1, 0.7, 1e6):
                    name = f"{dtype_name}.{norm_type * 10:g}.{max_norm * 10:g}"
                    parameters = parameters_with_gradients(dtype)
                    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
                    self.assert_same_bits(results[f"{name}.norm"], norm.double(), name)
                    self.assert_gradients(results, name, parameters)
            parameters = parameters_with_gradients(dtype)
            torch.nn.utils.clip_grad_value_(parameters, 0.3)
            self.assert_gradients(results, f"{dtype_name}.value", parameters)
            parameters = parameters_with_gradients(dtype)
            torch.nn.utils.clip_grads_with_norm_(parameters, 0.9,
                                                 torch.tensor(7.3, dtype=torch.float64))
            self.assert_gradients(results, f"{dtype_name}.known", parameters)

    def test_averaged_weights(self):
        results = self.results("average")
        for use_buffers in (False, True):
            for decay in (0.0, 0.3, 0.9, 0.999, 1.0):
                weights = Weights()
                averaged = AveragedModel(weights, multi_avg_fn=get_ema_multi_avg_fn(decay),
                                         use_buffers=use_buffers)
                for step in range(1, 6):
                    weights.set(step)
                    averaged.update_parameters(weights)
                expected = averaged.state_dict()
                prefix = f"{int(use_buffers)}.{decay * 1000:g}."
                ours = {name.removeprefix(prefix): value for name, value in results.items()
                        if name.startswith(prefix)}
                self.assertEqual(ours.keys(), expected.keys())
                for name, value in expected.items():
                    self.assert_same_bits(ours[name], value, prefix + name)
                AveragedModel(weights).load_state_dict(ours)  # Python takes it over.

    def test_sharded_optimizers(self):
        run_pytorch_ranks(zero_redundancy_rank, (2, self.folder), 2)
        for kind, (optimizer_class, options) in OPTIMIZERS.items():
            path = os.path.join(self.folder, f"{kind}.ours.pt")
            subprocess.run([LOCKSTEP, "run", "--standalone", "--nproc-per-node=2", WORKER, kind, path],
                           check=True, timeout=60, env=os.environ | {"OMP_NUM_THREADS": "1"})
            ours = torch.load(path)
            states = {}
            for rank in range(2):
                expected, own = torch.load(f"{self.folder}/{kind}.{rank}.pt")
                self.assertTrue(states.keys().isdisjoint(own.keys()))
                states |= own
                for i, parameter in enumerate(expected):
                    name = f"{kind}.{i}"
                    torch.testing.assert_close(ours["extra"][f"p{i}"], parameter, msg=name)
                    if kind == "sgd":  # The same arithmetic in both languages, which AdamW is not.
                        self.assert_same_bits(ours["extra"][f"p{i}"], parameter, name)
            self.assertEqual(ours["optimizer"]["state"].keys(), states.keys())
            for i, state in states.items():
                self.assertEqual(ours["optimizer"]["state"][i].keys(), state.keys())
                for name, value in state.items():
                    torch.testing.assert_close(ours["optimizer"]["state"][i][name], value)
            parameters = parameters_with_gradients(torch.float32)
            optimizer_class(parameters, **options).load_state_dict(ours["optimizer"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
