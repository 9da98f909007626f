#!/usr/bin/env python3
"""What scripts/fuzz.sh writes about seeds that crash, and says about arguments that it refuses.

Usage: fuzz_script.py FUZZ_SH [unittest arguments]
"""

import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

FUZZ = pathlib.Path(sys.argv[1]).resolve()
CRASHED = 139  # killed by SIGSEGV, as a shell says it

# Starts the program behind its own flags, and keeps what it was called with; ends the script at the fourth call.
LOCKSTEP = """#!/bin/bash
calls=$(dirname "$0")/calls
echo "$*" >>"$calls"
[[ $(wc -l <"$calls") -lt 4 ]] || kill "$PPID"
shift 3
exec "$@"
"""

# Crashes in the third seed of the first batch; passes others.
DIFFERENTIAL = f"""#!/bin/bash
for argument in "$@"; do
  case "$argument" in
    --seeds=*) seed=${{argument#*=}} ;;
    --progress=*) progress=${{argument#*=}} ;;
  esac
done
if [[ $seed == 100:* ]]; then
  echo 102 >"$progress"
  exit {CRASHED}
fi
echo "${{seed%:*}}" >"$progress"
echo "${{seed#*:}} seeds, 0 failed"
"""

NEVER_STARTS = f"""#!/bin/bash
echo "no memory for a worker"
exit {CRASHED}
"""


class FuzzScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.failures = self.build / "failures"
        (self.build / "bin").mkdir()

    def write_programs(self, lockstep=LOCKSTEP, differential=DIFFERENTIAL):
        for name, text in (("lockstep", lockstep), ("differential", differential)):
            (self.build / "bin" / name).write_text(text)
            (self.build / "bin" / name).chmod(0o755)

    def run_fuzz(self, *arguments):
        return subprocess.run([FUZZ, f"--build={self.build}", f"--failures={self.failures}", *arguments],
                              capture_output=True, text=True, timeout=60, check=False)

    def test_a_seed_that_crashes_is_kept_and_the_next_seeds_run(self):
        self.write_programs()
        done = self.run_fuzz("--first=100")
        self.assertEqual(done.returncode, -signal.SIGTERM, done.stderr)
        self.assertEqual(self.failures.read_text(), "2 102\n")
        calls = (self.build / "bin" / "calls").read_text().splitlines()
        self.assertIn("--nproc-per-node=2", calls[1])
        self.assertIn("--seeds=103:197 ", calls[1])
        self.assertIn("--nproc-per-node=3", calls[2])
        self.assertIn("--seeds=300:200 ", calls[2])

    def test_seeds_that_fail_and_the_one_that_crashes_behind_them_are_kept(self):
        self.write_programs(differential=DIFFERENTIAL.replace(
            "  echo 102 >", "  echo 'seed 101 of 2 ranks: rank 0, gradients: 1 instead of 2'\n  echo 102 >"))
        done = self.run_fuzz("--first=100")
        self.assertEqual(done.returncode, -signal.SIGTERM, done.stderr)
        self.assertEqual(self.failures.read_text(), "2 101\n2 102\n")
        self.assertIn("1 instead of 2", done.stdout)

    def test_a_job_that_does_not_start_ends_the_script_with_its_output(self):
        self.write_programs(lockstep=NEVER_STARTS)
        done = self.run_fuzz("--hours=1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no memory for a worker", done.stderr)
        self.assertIn(f"exit code {CRASHED} before its first seed", done.stderr)
        self.assertFalse(self.failures.exists())

    def test_it_ends_when_its_time_is_over(self):
        self.write_programs()
        done = self.run_fuzz("--hours=0", "--first=1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(self.failures.exists())

    def check_refused(self, text, *arguments):
        done = self.run_fuzz(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_arguments_that_mean_nothing_are_refused_by_name(self):
        self.write_programs()
        self.check_refused("--hours='soon': give a number of hours", "--hours=soon")
        self.check_refused("--hours=''", "--hours=")
        self.check_refused("--first='1x': give the first seed", "--first=1x")
        self.check_refused("unknown argument '--hour=1'", "--hour=1")

    def test_programs_that_are_not_built_are_named(self):
        self.check_refused(f"there is no program {self.build}/bin/lockstep; build it")
        self.write_programs()
        (self.build / "bin" / "differential").unlink()
        self.check_refused(f"there is no program {self.build}/bin/differential; build it")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
