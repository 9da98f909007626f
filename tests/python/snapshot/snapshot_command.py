"""`lockstep snapshot`, on what a program of Lockstep saved, and what Python reads of what it exports.

    snapshot_command.py PATH_OF_LOCKSTEP PATH_OF_SNAPSHOT_WORKER
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch

try:
    from safetensors.torch import load_file
except ImportError:
    load_file = None

from snapshot_interop import OPTIMIZERS, SmallNet, train_by_formula

LOCKSTEP = ""
WORKER = ""


class Command(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.run_folder = directory.name
        self.saved = os.path.join(directory.name, "snapshot-e0002-s00000003.pt")
        subprocess.run([WORKER, "write", "Adam", self.saved], check=True, timeout=60)
        self.target = os.path.join(directory.name, "target")

    def snapshot(self, *arguments, code=0):
        done = subprocess.run([LOCKSTEP, "snapshot", *arguments], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code in (0, 1) and not done.stderr else done.stderr

    def flip(self, path, place):
        with open(path, "r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 16]))

    def test_help_teaches_and_mistakes_name_the_cure(self):
        self.assertIn("lockstep snapshot verify runs/digits", self.snapshot("--help"))
        self.assertIn("--keep", self.snapshot("prune", "--help"))
        self.assertIn("snapshot", subprocess.run([LOCKSTEP, "--help"], capture_output=True,
                                                 text=True).stdout)
        for arguments, cure in ((["list"], "ls, verify"), (["ls"], "DIR is required"),
                                (["export", self.saved, "x.onnx"], "--format"),
                                (["prune", self.run_folder], "--keep is required"),
                                (["prune", self.run_folder, "--keep=0"], "--keep"),
                                (["prune", self.run_folder, "--keep=0x2"], "--keep"),
                                (["--"], "subcommand"),
                                (["show", "a", "b"], "b"), (["diff", "a"], "OTHER is required")):
            said = self.snapshot(*arguments, code=2)
            self.assertIn(cure, said)
            self.assertEqual(len(said.splitlines()), 1)

    def test_a_second_action_is_a_path(self):
        self.assertIn("ABSENT   ls", self.snapshot("verify", self.run_folder, "ls", self.run_folder, code=1))

    def test_ls_and_show(self):
        rows = json.loads(self.snapshot("ls", self.run_folder, "--json"))
        self.assertEqual([(row["name"], row["epoch"], row["step"], row["ranks"]) for row in rows],
                         [(os.path.basename(self.saved), 2, 3, 1)])
        self.assertIn("snapshot-e0002-s00000003.pt  file", self.snapshot("ls", self.run_folder))
        shown = json.loads(self.snapshot("show", self.saved, "--json"))
        tensors = {tensor["name"]: tensor for tensor in shown["tensors"]}
        saved = torch.load(self.saved)
        weight = saved["model"]["first.weight"].double()
        found = tensors["model.first.weight"]
        self.assertAlmostEqual(found["mean"], weight.mean().item())
        self.assertAlmostEqual(found["std"], weight.std(correction=0).item())
        self.assertAlmostEqual(found["norm"], weight.norm().item())
        self.assertEqual(shown["optimizer_groups"][0]["amsgrad"], True)

    def test_verify_names_the_damaged_tensor_that_python_does_not_notice(self):
        self.assertIn("whole", self.snapshot("verify", self.run_folder))
        weight = torch.load(self.saved)["model"]["second.weight"]
        with open(self.saved, "rb") as file:
            content = file.read()
        self.flip(self.saved, content.find(weight.numpy().tobytes()) + 2)
        torch.load(self.saved)  # Python does not notice.
        self.assertIn("model.second.weight", self.snapshot("verify", self.run_folder, code=1))

    def test_diff_of_three_steps(self):
        self.assertIn("identical to the bit", self.snapshot("diff", self.saved, self.saved))
        found = json.loads(self.snapshot("diff", self.saved, self.saved + ".later", "--json",
                                         code=1))
        a = torch.load(self.saved)["model"]["second.bias"]
        b = torch.load(self.saved + ".later")["model"]["second.bias"]
        differing = {entry["name"]: entry for entry in found["differing"]}
        self.assertAlmostEqual(differing["model.second.bias"]["max_absolute"],
                               (a.double() - b.double()).abs().max().item())

    def test_a_state_dict_for_python(self):
        path = self.target + ".pt"
        self.snapshot("export", self.saved, path)
        SmallNet().load_state_dict(torch.load(path, weights_only=True))
        self.assertIn("--force", self.snapshot("export", self.saved, path, code=2))
        self.snapshot("export", self.saved, path, "--force", "--prefix=module.")
        torch.nn.DataParallel(SmallNet()).load_state_dict(torch.load(path, weights_only=True))

    def test_an_optimizer_for_python_goes_on_alike(self):
        self.snapshot("export", self.saved, self.target + ".pt", "--part=optimizer")
        net = SmallNet()
        net.load_state_dict(torch.load(self.saved)["model"])
        optimizer = OPTIMIZERS["Adam"](net.parameters())
        optimizer.load_state_dict(torch.load(self.target + ".pt", weights_only=True))
        train_by_formula(net, optimizer, 3)
        later = torch.load(self.saved + ".later")["model"]
        for name, value in net.state_dict().items():
            torch.testing.assert_close(value, later[name], rtol=1e-6, atol=1e-7)

    @unittest.skipUnless(load_file, "the package safetensors is not installed")
    def test_safetensors_for_python(self):
        self.snapshot("export", self.saved, self.target + ".safetensors")
        SmallNet().load_state_dict(load_file(self.target + ".safetensors"))
        self.assertIn("no checksum", self.snapshot("verify", self.target + ".safetensors"))

    def test_a_sharded_snapshot(self):
        subprocess.run([WORKER, "shard", "Adam", self.target], check=True, timeout=60)
        folder = os.path.join(self.target, "snapshot-e0002-s00000003")
        with open(os.path.join(folder, "manifest.json")) as file:
            manifest = json.load(file)
        self.assertEqual((manifest["epoch"], manifest["step"], manifest["world_size"]), (2, 3, 1))
        share = os.path.join(folder, manifest["files"][0]["name"])
        self.assertEqual(os.path.getsize(share), manifest["files"][0]["bytes"])
        model = torch.load(share, weights_only=True)["model"]
        SmallNet().load_state_dict(model)
        self.assertEqual(["model." + name for name in model],
                         [tensor["name"] for tensor in manifest["tensors"]][:len(model)])
        self.assertIn("sharded", self.snapshot("ls", self.target))
        self.assertIn("whole", self.snapshot("verify", folder))
        self.assertIn("model.first.weight", self.snapshot("show", folder))
        self.snapshot("export", folder, self.target + ".pt")
        exported = torch.load(self.target + ".pt", weights_only=True)
        for name, value in model.items():
            self.assertTrue(torch.equal(exported[name], value), name)
        self.flip(share, os.path.getsize(share) // 2)
        self.assertIn(os.path.basename(share), self.snapshot("verify", self.target, code=1))

    def test_prune(self):
        for step in (4, 5):
            path = self.saved.replace("03.pt", f"0{step}.pt")
            with open(self.saved, "rb") as source, open(path, "wb") as target:
                target.write(source.read())
        self.flip(path, 5000)
        self.assertIn("would delete snapshot-e0002-s00000003.pt",
                      self.snapshot("prune", self.run_folder, "--keep=1", "--dry-run"))
        self.snapshot("prune", self.run_folder, "--keep=1")
        rows = json.loads(self.snapshot("ls", self.run_folder, "--json"))
        self.assertEqual([row["step"] for row in rows], [5, 4])


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
