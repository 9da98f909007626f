#!/usr/bin/env python3
"""PyTorch programs run under `lockstep run` as they are: scripts, modules, @record, plain shell.

    torch_programs.py <lockstep>
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from launch_reports import failures

LOCKSTEP = sys.argv[1]
DEADLINE_S = 120

# PyTorch's own example of DistributedDataParallel, in short.
TRAIN = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    def main():
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        torch.manual_seed(rank)
        model = DDP(torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.full((2, 4), float(rank + step))).square().mean()
            loss.backward()
            optimizer.step()
        mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        seen = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(seen, mine)
        # In one write: the ranks share a pipe.
        sys.stdout.write(f"rank {rank} of {dist.get_world_size()} launched {dist.is_torchelastic_launched()} "
                         f"equal {all(torch.equal(mine, other) for other in seen)}\\n")
        sys.stdout.flush()
        os._exit(0)  # PyTorch's Gloo sometimes aborts in the interpreter's end.

    if __name__ == "__main__":
        main()
"""

# Prints how the interpreter was started. Without PyTorch, whose import takes seconds.
STARTED = """
    import os
    import sys
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} launched {launched} "
                     f"{__name__} of {__package__ or 'no package'} with {sys.argv[1:]}\\n")
"""

RECORDED = """
    import os
    import sys
    import time

    if os.environ["RANK"] == "0":
        time.sleep(1000)
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        raise ValueError(f"cannot train on {sys.argv[1]}")

    if __name__ == "__main__":
        main()
"""

# Fails once, in the middle, and goes on from what it saved.
RESTARTED = """
    import os
    import pathlib
    import sys
    import torch.distributed as dist

    saved = pathlib.Path("saved")
    dist.init_process_group("gloo")
    begin = int(saved.read_text()) if saved.exists() else 0
    for step in range(begin, 6):
        dist.barrier()
        if dist.get_rank() == 0:
            saved.write_text(str(step + 1))
        dist.barrier()
        if dist.get_rank() == 1 and step == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), 9)
    sys.stdout.write(f"rank {dist.get_rank()} from {begin} restarts {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n")
    sys.stdout.flush()
    os._exit(0)  # PyTorch's Gloo sometimes aborts in the interpreter's end.
"""


def environment():
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PET_", "TORCHELASTIC", "OMP_", "LOCKSTEP_"))}
    return kept | {"PYTHON_EXEC": sys.executable}


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def run_job(self, *arguments, expected=0):
        done = subprocess.run([LOCKSTEP, "run", "--standalone", "--nproc-per-node=2", *arguments], cwd=self.folder,
                              env=environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        return sorted(done.stdout.splitlines()), done.stderr

    def test_a_script_with_ddp(self):
        self.write("train.py", TRAIN)
        self.assertEqual(self.run_job("train.py")[0],
                         [f"rank {rank} of 2 launched True equal True" for rank in range(2)])

    def expect_started(self, lines, package):
        self.assertEqual(lines, [f"rank {rank} of 2 launched True __main__ of {package} with ['a b']"
                                 for rank in range(2)])

    def test_a_module(self):
        self.write("package/__init__.py", "")
        self.write("package/train.py", STARTED)
        self.expect_started(self.run_job("-m", "package.train", "a b")[0], "package")

    def test_a_script_of_any_name_by_run_path(self):
        self.write("train", STARTED)
        self.expect_started(self.run_job("--run-path", str(self.folder / "train"), "a b")[0], "no package")

    def test_the_error_that_record_left_is_in_the_report_and_in_the_log_folder(self):
        self.write("train.py", RECORDED)
        _, err = self.run_job("--log-dir=logs", "train.py", "sand", expected=1)
        failure, = failures(err)
        self.assertEqual((failure.rank, failure.local_rank, failure.is_first, failure.exit_code, failure.said),
                         (1, 1, True, 1, ": ValueError: cannot train on sand"), err)
        (file,) = self.folder.glob("logs/*/attempt_0/1/error.json")
        message = json.loads(file.read_text())["message"]
        self.assertEqual(message["message"], "ValueError: cannot train on sand")
        self.assertIn("raise ValueError", message["extraInfo"]["py_callstack"])

    def test_a_killed_rank_is_restarted_from_what_was_saved(self):
        self.write("train.py", RESTARTED)
        lines, err = self.run_job("--max-restarts=2", "train.py")
        self.assertEqual(lines, [f"rank {rank} from 4 restarts 1" for rank in range(2)])
        failure, = failures(err)
        self.assertEqual((failure.rank, failure.signal, failure.restart), (1, "SIGKILL", 1), err)

    def test_a_shell_script(self):
        self.write("work.sh", """\
            #!/usr/bin/env bash
            set -euo pipefail
            echo "worker $RANK of $WORLD_SIZE: $* (${local:-none})"
        """)
        os.chmod(self.folder / "work.sh", 0o755)
        for program in (["bash", "work.sh"], ["./work.sh"]):
            lines, _ = self.run_job(*program, "a b", "--x=${local_rank}")
            self.assertEqual(lines, [f"worker {rank} of 2: a b --x={rank} (none)" for rank in range(2)])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
