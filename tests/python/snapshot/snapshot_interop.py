"""Snapshots between Lockstep and Python's torch, both ways.

    snapshot_interop.py PATH_OF_SNAPSHOT_WORKER
"""

import collections
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest
import zipfile

import torch

try:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError:
    safe_open = None

WORKER = ""
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
}


class SmallNet(torch.nn.Module):
    """The network of the C++ side, by the same names."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu())


def train_by_formula(net, optimizer, steps):
    net.eval()
    for step in range(steps):
        x = (torch.arange(24, dtype=torch.float32) * (step + 1)).sin().reshape(6, 4)
        optimizer.zero_grad()
        (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def worker(*arguments):
    return subprocess.run([WORKER, *arguments], capture_output=True, text=True, timeout=60)


class Interop(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "file.pt")

    def work(self, *arguments):
        done = worker(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def assert_same_weights(self, a, b):
        self.assertEqual(list(a), list(b))
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-6, atol=1e-7, msg=name)

    def test_python_resumes_what_lockstep_saved(self):
        for kind, make in OPTIMIZERS.items():
            with self.subTest(kind):
                self.work("write", kind, self.path)
                saved = torch.load(self.path)
                net = SmallNet()
                optimizer = make(net.parameters())
                net.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                train_by_formula(net, optimizer, 3)
                later = torch.load(self.path + ".later")
                self.assert_same_weights(net.state_dict(), later["model"])

    def test_lockstep_resumes_what_python_saved(self):
        for kind, make in OPTIMIZERS.items():
            with self.subTest(kind):
                torch.manual_seed(1)
                net = SmallNet()
                net.norm.running_mean.fill_(0.25)
                optimizer = make(net.parameters())
                train_by_formula(net, optimizer, 3)
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, self.path)
                train_by_formula(net, optimizer, 3)
                self.work("resume", kind, self.path)
                later = torch.load(self.path + ".later")
                self.assert_same_weights(net.state_dict(), later["model"])

    def test_a_snapshot_is_plain_values(self):
        self.work("write", "Adam", self.path)
        for options in ({}, {"weights_only": True}, {"mmap": True}, {"map_location": "meta"}):
            saved = torch.load(self.path, **options)
            self.assertEqual((saved["epoch"], saved["step"], saved["world_size"]), (2, 3, 1))
            self.assertEqual(saved["lockstep"]["format"], 1)
            self.assertEqual(saved["extra"]["bfloat16"].dtype, torch.bfloat16)
            self.assertEqual(saved["extra"]["transposed"].stride(), (1, 3))
        torch.set_rng_state(torch.load(self.path)["random_state"][0])

    def test_a_snapshot_is_a_sound_zip_archive(self):
        self.work("write", "SGD", self.path)
        with zipfile.ZipFile(self.path) as archive:
            self.assertIsNone(archive.testzip())
            self.assertRegex(archive.comment, rb"^lockstep-xxh3:[0-9a-f]{32}$")

    def test_lockstep_reads_state_dicts_of_python(self):
        tensors = collections.OrderedDict(
            weight=torch.nn.Parameter(torch.ones(2, 3)),
            half=torch.arange(4, dtype=torch.bfloat16),
            part=torch.arange(10)[2:8:2],
            flag=torch.tensor(True),
            empty=torch.empty(0, 4),
        )
        expected = ["weight float [2, 3] 6", "half c10::BFloat16 [4] 6", "part long int [3] 12",
                    "flag bool [] 1", "empty float [0, 4] 0"]
        for content in (tensors, dict(tensors), {"model": tensors, "lr": 0.1},
                        {"state_dict": tensors, "epoch": 2**40}):
            torch.save(content, self.path)
            self.assertEqual(self.work("print", self.path).splitlines(), expected)

    @unittest.skipUnless(safe_open, "the package safetensors is not installed")
    def test_lockstep_reads_dtypes_that_have_no_storage_class(self):
        names = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "uint16",
                 "uint32", "uint64")
        tensors = {}
        for name in names:
            dtype = getattr(torch, name)
            values = torch.tensor([[1, 2, 4], [8, 16, 32]], dtype=torch.float32).to(dtype)
            bytes_each = values.element_size()
            tensors[name] = values
            tensors[name + ".part"] = values[:, 1:]
            tensors[name + ".bits"] = values.view(torch.uint8).reshape(2, 3 * bytes_each)
        torch.save(tensors, self.path)
        self.assertEqual(set(torch.load(self.path, weights_only=True)), set(tensors))
        self.work("convert", self.path, self.path + ".safetensors")
        read = load_file(self.path + ".safetensors")
        self.assertEqual(set(read), set(tensors))
        for name, expected in tensors.items():
            self.assertEqual((read[name].dtype, read[name].shape), (expected.dtype, expected.shape), name)
            self.assertEqual(read[name].contiguous().view(torch.uint8).tolist(),
                             expected.contiguous().view(torch.uint8).tolist(), name)

    def test_the_old_format_is_named_with_the_cure(self):
        state = SmallNet().state_dict()
        torch.save(state, self.path, _use_new_zipfile_serialization=False)
        done = worker("print", self.path)
        self.assertEqual(done.returncode, 2)
        self.assertNotIn("damaged", done.stderr)
        cure = re.search(r"torch\.save\(.*\)$", done.stderr.strip())
        self.assertIsNotNone(cure, done.stderr)
        exec(cure[0], {"torch": torch})  # pylint: disable=exec-used
        self.assertEqual(len(self.work("print", self.path).splitlines()), len(state))

    def test_what_unfolds_to_much_more_than_its_file_is_refused(self):
        text = "a" * (1 << 20)
        torch.save({"model": [text] * 100_000}, self.path)
        self.assertLess(os.path.getsize(self.path), 2 << 20)
        limit = 1 << 30
        done = subprocess.run([WORKER, "print", self.path], capture_output=True, text=True, timeout=60, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("it unfolds to too many bytes", done.stderr)

    def test_what_holds_more_than_tensors_is_refused_in_one_line(self):
        class Attack:
            def __reduce__(self):
                return (os.system, ("touch " + self.canary,))

        attack = Attack()
        attack.canary = self.path + ".canary"
        for content, name in ((attack, "posix.system"), (SmallNet(), "__main__.SmallNet")):
            torch.save(content, self.path)
            done = worker("print", self.path)
            self.assertEqual(done.returncode, 2)
            self.assertIn(name, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertFalse(os.path.exists(attack.canary))

    def test_a_file_of_python_is_no_snapshot(self):
        torch.save(SmallNet().state_dict(), self.path)
        done = worker("load", self.path)
        self.assertEqual(done.returncode, 2)
        self.assertIn("another program", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_a_flipped_byte_in_a_tensor_of_python_is_noticed(self):
        torch.save({"weight": torch.arange(1000)}, self.path)
        with open(self.path, "r+b") as file:
            file.seek(4000)
            byte = file.read(1)[0]
            file.seek(4000)
            file.write(bytes([byte ^ 1]))
        torch.load(self.path)  # Python does not notice.
        done = worker("print", self.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("CRC", done.stderr)

    @unittest.skipUnless(safe_open, "the package safetensors is not installed")
    def test_safetensors_go_both_ways(self):
        dtypes = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                  torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
                  torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]
        tensors = {f"{dtype}": torch.arange(7).to(dtype) for dtype in dtypes}
        tensors["odd"] = torch.ones(3, dtype=torch.uint8)
        tensors["empty"] = torch.empty(3, 0)
        tensors["scalar"] = torch.tensor(2.5)
        theirs, ours = self.path + ".theirs.safetensors", self.path + ".safetensors"
        save_file(tensors, theirs, metadata={"note": "theirs"})
        self.work("convert", theirs, ours)
        read = load_file(ours)
        self.assertEqual(set(read), set(tensors))
        for name, tensor in tensors.items():
            self.assertEqual((read[name].dtype, read[name].shape), (tensor.dtype, tensor.shape))
            self.assertEqual(read[name].untyped_storage().tolist()[:tensor.nbytes],
                             tensor.untyped_storage().tolist(), name)
        with safe_open(ours, "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt"})

    @unittest.skipUnless(safe_open, "the package safetensors is not installed")
    def test_a_state_dict_of_python_becomes_safetensors_that_python_loads(self):
        net = SmallNet()
        torch.save(net.state_dict(), self.path)
        self.work("convert", self.path, self.path + ".safetensors")
        other = SmallNet()
        other.load_state_dict(load_file(self.path + ".safetensors"))
        self.assert_same_weights(net.state_dict(), other.state_dict())

    def refusal_with(self, changed_records):
        """What is said of a file of Python with other contents of some records."""
        torch.save({"weight": torch.arange(1000)}, self.path)
        with zipfile.ZipFile(self.path) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, content in records.items():
                archive.writestr(name, changed_records.get(name.split("/", 1)[1], content))
        done = worker("print", self.path)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        return done.stderr

    def test_numbers_of_another_byte_order_are_refused(self):
        self.assertIn("big-endian", self.refusal_with({"byteorder": b"big"}))

    def test_a_storage_of_another_size_is_refused(self):
        for size_bytes in (0, 7999, 8001):
            self.assertIn(f"storage '0' has {size_bytes} bytes instead of 8000",
                          self.refusal_with({"data/0": bytes(size_bytes)}))


if __name__ == "__main__":
    WORKER = sys.argv.pop(1)
    unittest.main()
