"""`lockstep snapshot convert` between formats, with the Python package of each as the oracle, both ways.

    checkpoint_formats.py PATH_OF_LOCKSTEP
"""

import json
import os
import pathlib
import pickle
import resource
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

try:
    from huggingface_hub import save_torch_state_dict
    from safetensors.torch import load_file, save_file
except ImportError:
    load_file = None

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from pytorch_ranks import run_pytorch_ranks

LOCKSTEP = ""
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64, torch.complex64, torch.uint16, torch.uint32, torch.uint64] + FLOAT8


def tensors_of_every_kind():
    tensors = {f"layer.{dtype}": torch.arange(30).reshape(5, 6).to(dtype) for dtype in DTYPES}
    tensors["odd"] = torch.ones(3, dtype=torch.uint8)
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.empty(3, 0)
    tensors |= {f"block.{i}": torch.arange(1000, dtype=torch.float32).reshape(10, 100) + i for i in range(10)}
    return tensors


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def save_fully_sharded(rank, world_size, store, folder):
    """What FSDP2 saves after a step; rank 0 also saves the whole tensors, for comparison."""
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world_size)
    module = net()
    fully_shard(module[0])
    fully_shard(module)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(module, optimizer)
    dcp.save({"model": weights, "optim": state, "step": 5}, checkpoint_id=folder)
    whole = {name: value.full_tensor() for name, value in weights.items()}
    averages = {name: value["exp_avg"].full_tensor() for name, value in state["state"].items()}
    if rank == 0:
        torch.save({"model": whole, "averages": averages}, folder + ".pt")
    dist.destroy_process_group()


def shardings():
    return {"rows": ([Shard(0)], (7, 5)), "columns": ([Shard(1)], (4, 6)), "few_rows": ([Shard(0)], (1, 3)),
            "replicated": ([Replicate()], (3, 3)), "middle": ([Shard(1)], (2, 3, 2))}


def numbered(shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def save_sharded(rank, world_size, store, folder):
    """DTensors sharded by rows, by columns, over more ranks than rows; and dtypes without a storage class."""
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world_size)
    mesh = init_device_mesh("cpu", (world_size,))
    tensors = {name: distribute_tensor(numbered(shape), mesh, placements)
               for name, (placements, shape) in shardings().items()}
    tensors |= {f"plain.{dtype}": numbered((4,), dtype) for dtype in DTYPES}
    tensors["transposed"] = numbered((3, 4)).t()
    dcp.save(tensors, checkpoint_id=folder)
    dist.destroy_process_group()


def load_fully_sharded(rank, world_size, store, folder, result):
    """What FSDP2 of so many ranks loads of a folder that Lockstep wrote."""
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world_size)
    module = net()
    fully_shard(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    weights = module.state_dict()
    dcp.load(weights, checkpoint_id=folder)
    module.load_state_dict(weights)
    whole = {name: value.full_tensor() if isinstance(value, DTensor) else value
             for name, value in module.state_dict().items()}
    if rank == 0:
        torch.save(whole, result)
    dist.destroy_process_group()


class Formats(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = directory.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def snapshot(self, *arguments, code=0, **options):
        done = subprocess.run([LOCKSTEP, "snapshot", *arguments], capture_output=True, text=True, timeout=120,
                              check=False, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertLessEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stderr if code else done.stdout

    def convert(self, *arguments, **options):
        return self.snapshot("convert", *arguments, **options)

    def assert_same(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for name, tensor in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertEqual(bits(found[name]), bits(tensor), name)

    def run_ranks(self, function, world_size, *arguments):
        store = self.path(f"store-{function.__name__}-{world_size}")
        run_pytorch_ranks(function, (world_size, store, *arguments), world_size, start_method="forkserver")

    def load_distributed(self, folder):
        dcp_to_torch_save(folder, folder + ".python.pt")
        return torch.load(folder + ".python.pt", weights_only=True)

    def load_sharded_safetensors(self, folder):
        with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
            index = json.load(file)
        files = {name: load_file(os.path.join(folder, name)) for name in set(index["weight_map"].values())}
        self.assertEqual(sum(len(tensors) for tensors in files.values()), len(index["weight_map"]))
        tensors = {name: files[file][name] for name, file in index["weight_map"].items()}
        self.assertEqual(index["metadata"]["total_size"], sum(tensor.nbytes for tensor in tensors.values()))
        return tensors, files

    @unittest.skipUnless(load_file, "the packages safetensors and huggingface_hub are not installed")
    def test_sharded_safetensors_of_python(self):
        tensors = tensors_of_every_kind()
        os.mkdir(self.path("hub"))
        save_torch_state_dict(tensors, self.path("hub"), max_shard_size=5000)
        self.assertGreater(len(os.listdir(self.path("hub"))), 3)
        self.convert(self.path("hub"), self.path("ours.safetensors"))
        self.assert_same(load_file(self.path("ours.safetensors")), tensors)

    @unittest.skipUnless(load_file, "the packages safetensors and huggingface_hub are not installed")
    def test_sharded_safetensors_for_python(self):
        tensors = tensors_of_every_kind()
        save_file(tensors, self.path("one.safetensors"), metadata={"note": "kept"})
        for shards in (1, 2, 5, 100):
            ours = self.path(f"ours{shards}")
            self.convert(self.path("one.safetensors"), ours, f"--shards={shards}")
            found, files = self.load_sharded_safetensors(ours)
            self.assert_same(found, tensors)
            self.assertLessEqual(len(files), shards)
            self.assertGreaterEqual(len(files), min(shards, 4))
            self.assertIn("whole", self.snapshot("verify", ours))

    def test_every_format_becomes_every_other(self):
        tensors = {name: tensor for name, tensor in tensors_of_every_kind().items()}
        torch.save(tensors, self.path("start.pt"))
        previous = self.path("start.pt")
        targets = (["a.safetensors"], ["b", "--shards=3"], ["c", "--format=dcp", "--shards=3"], ["d.pt"],
                   ["e", "--format=dcp"], ["f", "--shards=2"], ["g", "--format=dcp", "--shards=7"], ["h.safetensors"],
                   ["i.pt"])
        for name, *flags in targets:
            self.convert(previous, self.path(name), *flags)
            previous = self.path(name)
            self.assertIn("whole", self.snapshot("verify", previous))
        self.assert_same(torch.load(previous, weights_only=True), tensors)
        self.assertIn("identical to the bit", self.snapshot("diff", self.path("start.pt"), self.path("g")))

    def test_what_fully_sharded_ranks_saved(self):
        saved = self.path("saved")
        self.run_ranks(save_fully_sharded, 2, saved)
        expected = torch.load(saved + ".pt", weights_only=True)
        self.convert(saved, self.path("weights.pt"))
        self.assert_same(torch.load(self.path("weights.pt"), weights_only=True), expected["model"])
        self.convert(saved, self.path("all.pt"), "--part=all")
        everything = torch.load(self.path("all.pt"), weights_only=True)
        self.assert_same({name: everything[f"optim.state.{name}.exp_avg"] for name in expected["averages"]},
                         expected["averages"])
        self.assertIn("whole", self.snapshot("verify", saved))
        self.assertIn("0.weight", self.snapshot("show", saved))

    def test_weights_of_a_folder_are_those_of_a_file(self):
        def ones(*names):
            return {name: torch.ones(2) + number for number, name in enumerate(names)}

        for name, saved in {
                "flat": ones("w", "a.b"),
                "model": {"model": ones("0.w", "0.b"), "optim": {"state": {"0.w": ones("exp_avg")}}, "step": 5},
                "nested": {"model": {"head": torch.ones(2), "encoder": {"w": torch.zeros(2)}}},
                "optimizer": {"model": ones("w"), "optimizer": {"state_dict": ones("momentum")}},
                "averages": {"model": ones("w"), "ema": {"model": ones("w", "v")}},
                "state_dict": {"state_dict": {"layer": ones("w")}, "opt": ones("m"), "step": torch.tensor(5)},
                "both": {"model": {"state_dict": ones("w"), "ema": ones("w", "v")}},
                "tensor": {"model": torch.ones(2), "w": torch.zeros(3)},
                "others": {"net": ones("w"), "ema": {"model": ones("w", "v")}},
                "two": {"a": {"model": ones("w")}, "b": {"model": ones("w")}},
                "app": {"app": {"model": ones("w"), "optim": {"state": ones("m")}}, "step": 5},
                "states": {"app": {"model": ones("w"), "optim": ones("m")}, "rng": {"torch": torch.ones(3)}},
                "counts": {"model": {"blocks": [ones("w"), ones("w", "b")]}, "lr": 0.5}}.items():
            with self.subTest(name):
                dcp.save(saved, checkpoint_id=self.path(name))
                torch.save(saved, self.path(name + ".pt"))
                for part in "model", "all":
                    found = []
                    for source in name, name + ".pt":
                        self.convert(self.path(source), self.path("out.pt"), "--force", f"--part={part}")
                        found.append(torch.load(self.path("out.pt"), weights_only=True))
                    self.assert_same(*found)

    def test_weights_of_a_stateful_are_those_of_its_model(self):
        module = net()
        optimizer = torch.optim.AdamW(module.parameters())
        module(torch.ones(2, 5)).sum().backward()
        optimizer.step()

        class Application(Stateful):
            def state_dict(self):
                weights, state = get_state_dict(module, optimizer)
                return {"model": weights, "optim": state}

            def load_state_dict(self, state_dict):
                raise NotImplementedError

        for name, saved in {"app": {"app": Application(), "step": 5}, "module": {"model": module, "optimizer": optimizer},
                            "rest": {"state": Application(), "rng": {"torch": torch.ones(3)}, "step": torch.tensor(5)},
                            "raw": {"model": module.state_dict(), "optimizer": optimizer.state_dict()},
                            "wrapped": {"app": {"model": {"state_dict": module.state_dict()}}}}.items():
            with self.subTest(name):
                dcp.save(saved, checkpoint_id=self.path(name))
                self.convert(self.path(name), self.path(name + ".pt"))
                self.assert_same(torch.load(self.path(name + ".pt"), weights_only=True), module.state_dict())

    def test_any_sharding_of_any_number_of_ranks(self):
        self.run_ranks(save_sharded, 3, self.path("saved"))
        expected = {name: numbered(shape) for name, (_, shape) in shardings().items()}
        expected |= {f"plain.{dtype}": numbered((4,), dtype) for dtype in DTYPES}
        expected["transposed"] = numbered((3, 4)).t()
        self.convert(self.path("saved"), self.path("ours.pt"))
        self.assert_same(torch.load(self.path("ours.pt"), weights_only=True), expected)

    def test_python_loads_distributed_checkpoints_of_lockstep(self):
        tensors = tensors_of_every_kind()
        torch.save(tensors, self.path("start.pt"))
        for shards in (1, 2, 5):
            ours = self.path(f"ours{shards}")
            self.convert(self.path("start.pt"), ours, "--format=dcp", f"--shards={shards}")
            self.assert_same(self.load_distributed(ours), tensors)
            target = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
            dcp.load(target, checkpoint_id=ours)
            self.assert_same(target, tensors)

    def test_fully_sharded_ranks_load_what_lockstep_wrote(self):
        weights = {name: value + 1 for name, value in net().state_dict().items()}
        torch.save(weights, self.path("start.pt"))
        self.convert(self.path("start.pt"), self.path("ours"), "--format=dcp", "--shards=3")
        self.run_ranks(load_fully_sharded, 2, self.path("ours"), self.path("result.pt"))
        self.assert_same(torch.load(self.path("result.pt"), weights_only=True), weights)

    # Damage and attacks.

    def test_nothing_is_executed(self):
        canary = self.path("canary")

        class Attack:
            def __reduce__(self):
                return (os.system, ("touch " + canary,))

        os.mkdir(self.path("attack"))
        with open(self.path("attack/.metadata"), "wb") as file:
            pickle.dump(Attack(), file)
        self.assertIn("posix.system", self.convert(self.path("attack"), self.path("out.pt"), code=2))
        self.assertFalse(os.path.exists(canary))
        self.assertFalse(os.path.exists(self.path("out.pt")))

    def changed_metadata(self, name, change):
        """A folder of one rank whose metadata Python has changed."""
        folder = self.path(name)
        dcp.save({"weight": torch.arange(12).reshape(4, 3), "bias": torch.arange(4)}, checkpoint_id=folder)
        path = os.path.join(folder, ".metadata")
        with open(path, "rb") as file:
            metadata = pickle.load(file)
        change(metadata)
        with open(path, "wb") as file:
            pickle.dump(metadata, file)
        return folder

    def test_metadata_that_lies_is_refused(self):
        def place(metadata, name="weight"):
            return next(value for key, value in metadata.storage_data.items() if key.fqn == name)

        def move(metadata, path):
            place(metadata).relative_path = path

        def shape(metadata, size):
            metadata.state_dict_metadata["weight"].size = torch.Size(size)

        def chunk(metadata, offsets, sizes):
            only = metadata.state_dict_metadata["weight"].chunks[0]
            only.offsets, only.sizes = torch.Size(offsets), torch.Size(sizes)

        def drop(metadata):
            metadata.state_dict_metadata["weight"].chunks.clear()

        def set_place(metadata, **values):
            for key, value in values.items():
                setattr(place(metadata), key, value)

        def overlap(metadata):
            set_place(metadata, offset=place(metadata, "bias").offset)

        for name, change, words in (
                ("above", lambda m: move(m, "../x.distcp"), "is no file of the folder"),
                ("absolute", lambda m: move(m, "/etc/passwd"), "is no file of the folder"),
                ("huge", lambda m: shape(m, [2**40, 2**40]), "larger than any memory"),
                ("large", lambda m: shape(m, [2**40, 3]), "overlap or leave gaps"),
                ("negative", lambda m: shape(m, [-4, 3]), "larger than any memory"),
                ("beyond", lambda m: chunk(m, [2, 0], [4, 3]), "lies outside"),
                ("gap", lambda m: chunk(m, [0, 0], [3, 3]), "overlap or leave gaps"),
                ("none", drop, "overlap or leave gaps"),
                ("past_end", lambda m: set_place(m, offset=10**6), "too few for weight"),
                ("too_long", lambda m: set_place(m, length=10**9), "overlap at byte"),
                ("too_short", lambda m: set_place(m, length=10), "has more bytes than its place"),
                ("below_zero", lambda m: set_place(m, offset=-1), "is negative"),
                ("shared", overlap, "overlap at byte"),
                ("compressed", lambda m: set_place(m, transform_descriptors=["zstd"]), "transformed")):
            with self.subTest(name):
                folder = self.changed_metadata(name, change)
                limit = 4 << 30
                said = self.convert(folder, self.path(name + ".pt"), code=2 if name == "compressed" else 1,
                                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
                self.assertIn(words, said)
                self.assertFalse(os.path.exists(self.path(name + ".pt")))

    def test_a_flipped_byte_of_python_is_noticed(self):
        folder = self.changed_metadata("flipped", lambda metadata: None)
        path = os.path.join(folder, "__0_0.distcp")
        with open(path, "rb") as file:
            content = file.read()
        place = content.index(bytes(torch.arange(12).numpy().data)) + 3
        with open(path, "wb") as file:
            file.write(content[:place] + bytes([content[place] ^ 1]) + content[place + 1:])
        self.load_distributed(folder)  # Python does not notice.
        self.assertIn("CRC", self.convert(folder, self.path("out.pt"), code=1))
        self.assertIn("DAMAGED", subprocess.run([LOCKSTEP, "snapshot", "verify", folder], capture_output=True, text=True,
                                                check=False, timeout=60).stdout)

    def test_a_flipped_byte_is_noticed_where_no_read_is_of_a_whole_record(self):
        values = torch.arange(2000.)
        torch.save({"a": values[:1000], "b": values[1000:]}, self.path("parts.pt"))
        with open(self.path("parts.pt"), "rb") as file:
            content = file.read()
        self.convert(self.path("parts.pt"), self.path("good.safetensors"))
        place = content.index(bytes(values.numpy().data)) + 3000
        with open(self.path("parts.pt"), "wb") as file:
            file.write(content[:place] + bytes([content[place] ^ 1]) + content[place + 1:])
        self.assertIn("CRC", self.convert(self.path("parts.pt"), self.path("out.safetensors"), code=1))
        self.assertFalse(os.path.exists(self.path("out.safetensors")))

    def test_files_without_crcs_are_read_as_python_reads_them(self):
        tensors = tensors_of_every_kind()
        torch.serialization.set_crc32_options(False)
        self.addCleanup(torch.serialization.set_crc32_options, True)
        torch.save(tensors, self.path("start.pt"))
        dcp.save(tensors, checkpoint_id=self.path("saved"))
        for source in "start.pt", "saved":
            self.convert(self.path(source), self.path("out.pt"), "--force")
            self.assert_same(torch.load(self.path("out.pt"), weights_only=True), tensors)
            self.assertIn("without a CRC", self.snapshot("verify", self.path(source)))

    def test_more_files_than_a_process_may_open(self):
        os.mkdir(self.path("many"))
        index = {}
        for i in range(150):
            header = json.dumps({f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
            index[f"t{i}"] = f"model-{i}.safetensors"
            with open(os.path.join(self.path("many"), index[f"t{i}"]), "wb") as file:
                file.write(len(header).to_bytes(8, "little") + header + bytes([i]))
        with open(self.path("many/model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"weight_map": index}, file)
        self.convert(self.path("many"), self.path("out.pt"),
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)))
        self.assert_same(torch.load(self.path("out.pt"), weights_only=True),
                         {f"t{i}": torch.tensor([i], dtype=torch.uint8) for i in range(150)})

    def test_keys_that_give_one_name_are_named(self):
        torch.save({0: torch.ones(2), "0": torch.ones(3)}, self.path("keys.pt"))
        self.assertIn("called '0'", self.convert(self.path("keys.pt"), self.path("out.safetensors"), code=2))

    def test_no_tensor_has_the_name_of_the_metadata(self):
        torch.save({"__metadata__": torch.ones(2), "a": torch.ones(3)}, self.path("start.pt"))
        for target in "out.safetensors", "out":
            self.assertIn("'__metadata__'", self.convert(self.path("start.pt"), self.path(target), code=2))
        self.assertEqual(os.listdir(self.folder), ["start.pt"])
        self.convert(self.path("start.pt"), self.path("out"), "--format=dcp")
        self.assert_same(self.load_distributed(self.path("out")), torch.load(self.path("start.pt"), weights_only=True))

    @unittest.skipUnless(load_file, "the packages safetensors and huggingface_hub are not installed")
    def test_an_index_that_lies_is_refused(self):
        tensors = {"a": torch.ones(4), "b": torch.zeros(4)}
        save_file(tensors, self.path("outside.safetensors"))
        for number, (index, words) in enumerate((
                ({"weight_map": {"a": "../outside.safetensors"}}, "is no file of the folder"),
                ({"weight_map": {"a": self.path("outside.safetensors")}}, "is no file of the folder"),
                ({"weight_map": {"c": "model.safetensors"}}, "tensor 'c' is not in"),
                ({"weight_map": {"a": {"file": "model.safetensors"}}}, "more than names"),
                ({"weight_map": ["a"]}, "has no weight_map"),
                ({"metadata": {}}, "has no weight_map"),
                ([1], "is no object"))):
            folder = self.path(f"index{number}")
            os.mkdir(folder)
            save_file(tensors, os.path.join(folder, "model.safetensors"))
            with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
                json.dump(index, file)
            self.assertIn(words, self.convert(folder, self.path("out.pt"), code=1))
        self.assertFalse(os.path.exists(self.path("out.pt")))

    def test_a_damaged_file_of_a_folder_is_named(self):
        torch.save(tensors_of_every_kind(), self.path("start.pt"))
        for flags, name in (["--format=dcp"], "__0_0.distcp"), (["--shards=1"], "model-00001-of-00001.safetensors"):
            folder = self.path("damaged" + flags[0])
            self.convert(self.path("start.pt"), folder, *flags)
            path = os.path.join(folder, name)
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                byte = file.read(1)[0]
                file.seek(os.path.getsize(path) // 2)
                file.write(bytes([byte ^ 16]))
            self.assertIn(name + ": its checksum is not that in checksums.xxh3",
                          self.convert(folder, self.path("out.pt"), code=1).replace('"', ""))
            self.assertFalse(os.path.exists(self.path("out.pt")))

    def test_mistakes_name_the_cure(self):
        torch.save({"a": torch.ones(2)}, self.path("start.pt"))
        start = self.path("start.pt")
        os.mkdir(self.path("empty"))
        for arguments, words in (([start, self.path("x"), "--format=onnx"], "it is one of safetensors, dcp, pt"),
                                 ([start, self.path("x.pt"), "--format=dcp"], "dcp is a folder"),
                                 ([start, self.path("x.pt"), "--shards=2"], "is one file"),
                                 ([start, self.path("x"), "--shards=0"], "--shards"),
                                 ([start, self.path("x"), "--part=optimizer"], "it is one of model, all"),
                                 ([start, start], "--force"),
                                 ([self.path("empty"), self.path("x")], "has no manifest.json")):
            self.assertIn(words, self.convert(*arguments, code=2))
        self.assertEqual(sorted(os.listdir(self.folder)), ["empty", "start.pt"])

    def test_a_folder_is_replaced_as_a_whole(self):
        for value in (1, 2):
            torch.save({"a": torch.full((2,), value)}, self.path(f"{value}.pt"))
        self.convert(self.path("1.pt"), self.path("out"), "--format=dcp")
        self.convert(self.path("2.pt"), self.path("out"), "--force", "--shards=1")
        self.assertEqual(sorted(os.listdir(self.path("out"))),
                         ["checksums.xxh3", "model-00001-of-00001.safetensors", "model.safetensors.index.json"])
        self.assertEqual(sorted(os.listdir(self.folder)), ["1.pt", "2.pt", "out"])


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
