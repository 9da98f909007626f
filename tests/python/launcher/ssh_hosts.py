"""`lockstep run --hosts`: a job on machines that are reached by ssh, and what is left of it.

    ssh_hosts.py LOCKSTEP [unittest arguments]

sshd is a real one; the machines are addresses of loopback.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from missing import enter_for_class
from processes import DEADLINE_S, processes_with, read, wait_for
from ssh_server import ABSENT, HOSTS, SshServer

LOCKSTEP = os.path.abspath(sys.argv[1])
TWO = f"{HOSTS[0]}:2,{HOSTS[1]}"

WAITING = """echo "$$" > "$0.pids/$RANK.new"; mv "$0.pids/$RANK.new" "$0.pids/$RANK"
setsid sleep 1000 & exec sleep 1000
"""


class HostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = enter_for_class(cls, SshServer())

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="lockstep-hosts-")
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name).resolve()
        self.tag = f"tag-{self.folder.name}"

    def worker(self, text):
        script = self.folder / "worker.sh"
        script.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        script.chmod(0o700)
        (self.folder / "worker.sh.pids").mkdir()
        return "./worker.sh"

    def start(self, hosts, *arguments, **variables):
        # Its environment tells the processes of this test; LOCKSTEP_ goes to the machines by itself.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        job = subprocess.Popen(
            [LOCKSTEP, "run", f"--hosts={hosts}", f"--ssh-command={self.server.command()}", *arguments],
            cwd=self.folder, env=environment | {"LOCKSTEP_TEST_TAG": self.tag} | variables, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.end, job)
        return job

    @staticmethod
    def end(job):
        if job.poll() is None:
            job.kill()
            job.wait()
        job.stdout.close()
        job.stderr.close()

    def run_job(self, hosts, *arguments, **variables):
        job = self.start(hosts, *arguments, **variables)
        out, err = job.communicate(timeout=DEADLINE_S)
        return job.returncode, out, err

    def start_waiting(self, hosts, count, *flags, **variables):
        """A job whose workers and those below them wait."""
        job = self.start(hosts, *flags, self.worker(WAITING), **variables)
        pids = self.folder / "worker.sh.pids"
        wait_for(lambda: len(list(pids.glob("[0-9]"))) == count or job.poll() is not None,
                 lambda: f"{list(pids.iterdir())}")
        self.assertIsNone(job.poll(), job.poll() is not None and job.stderr.read())
        return job

    def job_processes(self):
        return processes_with(self.tag.encode())

    def expect_nothing_left(self):
        wait_for(lambda: not self.job_processes(), self.job_processes)

    def test_workers_run_on_all_machines_in_their_order(self):
        script = self.worker('echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $GROUP_RANK: '
                             '$DATA $HERE $(pwd) $1 ${LOCKSTEP_JOB_SECRET-none}"')
        code, out, err = self.run_job(TWO, "--env=DATA=a b", "--env", "HERE", script, "it's $HOME",
                                      HERE="here")
        self.assertEqual(code, 0, err)
        rest = f"a b here {self.folder} it's $HOME none"
        self.assertEqual(sorted(out.splitlines()), [f"0 of 3, 0 of 2, 0: {rest}",
                                                    f"1 of 3, 1 of 2, 0: {rest}",
                                                    f"2 of 3, 0 of 1, 1: {rest}"])
        self.assertIn(f"{HOSTS[1]}: lockstep: generation 1: machine 1 of 2, ranks 2 to 2 of 3", err)
        self.expect_nothing_left()

    def test_hosts_from_a_file(self):
        (self.folder / "hosts").write_text(f"# two machines\n{HOSTS[0]} slots=1\n{HOSTS[1]}:3\n")
        code, out, err = self.run_job("hosts", self.worker('echo "$RANK of $WORLD_SIZE"'))
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), [f"{rank} of 4" for rank in range(4)])

    def test_one_machine(self):
        code, out, err = self.run_job(f"{HOSTS[1]}:2", self.worker('echo "$RANK of $WORLD_SIZE"'))
        self.assertEqual((code, sorted(out.splitlines())), (0, ["0 of 2", "1 of 2"]), err)

    def test_the_exit_code_is_the_jobs(self):
        for wanted in (3, 255):
            code, _, err = self.run_job(TWO, "sh", "-c", f'[ "$RANK" != 2 ] || exit {wanted}; sleep 1000')
            self.assertEqual(code, wanted, err)
            self.assertIn(f"{HOSTS[0]}: lockstep: job failed: rank 2 (local rank 0", err)
        self.expect_nothing_left()

    def test_a_failed_worker_is_started_again(self):
        script = self.worker('[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || [ "$RANK" != 1 ] || kill -9 $$\n'
                             '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exec sleep 1000\necho "$RANK"')
        code, out, err = self.run_job(TWO, "--max-restarts=1", script)
        self.assertEqual((code, sorted(out.splitlines())), (0, ["0", "1", "2"]), err)
        self.assertIn("restart 1 of 1", err)

    def test_lines_are_not_mixed(self):
        script = self.worker('i=0; while [ $i -lt 200 ]; do printf "<%s.%s" $RANK $i; '
                             'printf " %0300d>\\n" 7; i=$((i+1)); done')
        code, out, err = self.run_job(TWO, "--tee=3", script)
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        for line in lines:
            self.assertRegex(line, r"^\[default[012]\]:<[012]\.\d+ 0{299}7>$")
        self.assertEqual(len(set(lines)), 600)

    def test_a_machine_that_is_not_there_is_named_with_sshs_reason(self):
        code, out, err = self.run_job(f"{HOSTS[0]},{ABSENT}", "sleep", "1000")
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn(f"lockstep: {ABSENT}: cannot be reached: ssh: connect to host {ABSENT} port "
                      f"{self.server.port}: Connection refused", err)
        self.expect_nothing_left()

    def test_a_job_that_needs_fewer_machines_goes_on_without(self):
        code, out, err = self.run_job(f"{HOSTS[0]},{ABSENT}", "--nnodes=1:2",
                                      "--rdzv-conf=last_call_timeout=0.5",
                                      self.worker('echo "$RANK of $WORLD_SIZE"'))
        self.assertEqual((code, out), (0, "0 of 1\n"), err)
        self.assertIn(f"{ABSENT}: cannot be reached", err)

    def test_a_machine_without_lockstep_or_the_directory(self):
        code, _, err = self.run_job(HOSTS[0], "--remote-lockstep=/nowhere/lockstep", "true")
        self.assertEqual(code, 1, err)
        self.assertIn(f"lockstep: {HOSTS[0]}: cannot execute /nowhere/lockstep there", err)
        here = self.folder / "here"
        here.mkdir()
        without = self.folder / "ssh.sh"
        without.write_text(f'#!/bin/sh\nrmdir {here}\nexec {self.server.command()} "$@"\n')
        without.chmod(0o700)
        moved = subprocess.run([LOCKSTEP, "run", f"--hosts={HOSTS[0]}", f"--ssh-command={without}", "true"],
                               cwd=here, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(moved.returncode, 1, moved.stderr)
        self.assertIn("cannot start lockstep there: go to ", moved.stderr)
        self.assertIn("the same directory on all machines", moved.stderr)

    def test_a_program_that_is_not_there_is_told(self):
        code, _, err = self.run_job(TWO, "./nothing")
        self.assertEqual(code, 127, err)
        self.assertIn(": lockstep: no such program: ./nothing; check the path", err)
        self.expect_nothing_left()

    def test_the_secret_is_nowhere_to_be_seen(self):
        job = self.start(TWO, "--max-restarts=0", self.worker(WAITING), LOCKSTEP_JOB_SECRET="xyzzy-secret")
        pids = self.folder / "worker.sh.pids"
        wait_for(lambda: len(list(pids.glob("[0-9]"))) == 3, lambda: job.poll())
        for pid, command in self.job_processes().items():
            self.assertNotIn("xyzzy-secret", command)
            if command.startswith("ssh ") or " 1000" in command:
                self.assertNotIn(b"xyzzy-secret", read(f"/proc/{pid}/environ"), command)
        self.assertEqual(sum(command.startswith("ssh ") for command in self.job_processes().values()), 2)

    def test_nothing_is_left_when_it_is_killed(self):
        job = self.start_waiting(TWO, 3)
        self.assertGreaterEqual(len(self.job_processes()), 1 + 2 + 2 + 6)
        job.kill()
        self.expect_nothing_left()

    def test_nothing_is_left_when_a_connection_ends(self):
        job = self.start_waiting(TWO, 3)
        for pid in self.server.connections()[HOSTS[1]]:
            os.kill(pid, signal.SIGKILL)
        _, err = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 1, err)
        self.assertIn(f"{HOSTS[1]}: the connection was lost", err)
        self.expect_nothing_left()

    def test_nothing_is_left_when_no_word_comes_though_no_connection_ends(self):
        for stopped in ("ssh ", f"{LOCKSTEP} run --hosts"):
            with self.subTest(stopped):
                job = self.start_waiting(TWO, 3, LOCKSTEP_HOSTS_SILENCE_S="2")
                pids = [pid for pid, command in self.job_processes().items() if command.startswith(stopped)]
                self.assertTrue(pids)
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                wait_for(lambda: all(command.startswith(("ssh ", f"{LOCKSTEP} run --hosts"))
                                     for command in self.job_processes().values()), self.job_processes)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                _, err = job.communicate(timeout=DEADLINE_S)
                self.assertNotEqual(job.returncode, 0, err)
                self.expect_nothing_left()
                self.forget_pids()

    def test_what_nobody_reads_yet_is_not_lost(self):
        # More than pipes hold, and only read long after all has ended there.
        job = self.start(TWO, self.worker("head -c 300000 /dev/zero | tr '\\0' 'a' | fold -w 99; echo; echo end $RANK"))
        wait_for(lambda: self.attendants() or job.poll() is not None, job.poll)
        wait_for(lambda: not self.attendants(), self.attendants)
        time.sleep(3)  # Longer than what others hold open is waited for.
        out, err = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 0, err)
        # Two of them write to one pipe, in pieces that need not end with a line.
        self.assertEqual(sorted(re.findall(r"end \d", out)), [f"end {rank}" for rank in range(3)])
        self.assertEqual(out.count("a"), 900_000)

    def attendants(self):
        """Their environment is sshd's, their directory the job's."""
        found = {}
        for pid, command in processes_with(b"attend").items():
            try:
                if not command.startswith("ssh ") and os.readlink(f"/proc/{pid}/cwd") == str(self.folder):
                    found[pid] = command
            except OSError:
                pass  # It has ended.
        return found

    def forget_pids(self):
        for path in (self.folder / "worker.sh.pids").iterdir():
            path.unlink()
        (self.folder / "worker.sh.pids").rmdir()

    def test_nothing_is_left_when_a_launcher_or_its_attendant_is_killed(self):
        for name in ("lockstep attend", "lockstep run --nproc-per-node=2"):
            with self.subTest(name):
                job = self.start_waiting(TWO, 3)
                # The attendant has the environment of sshd. The launcher's guard has its command line.
                killed = [pid for pid, command in processes_with(b"lockstep").items()
                          if (command.startswith(f"{name} ") or command.endswith(f"/{name} "))
                          and read(f"/proc/{pid}/comm") != b"lockstep-guard\n"]
                self.assertTrue(killed)
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
                _, err = job.communicate(timeout=DEADLINE_S)
                self.assertNotEqual(job.returncode, 0, err)
                self.expect_nothing_left()
                self.forget_pids()

    def test_workers_that_do_not_end_are_killed_in_time(self):
        job = self.start(TWO, "--shutdown-timeout=0.5",
                         self.worker('trap "" TERM INT\n' + WAITING.replace("exec sleep 1000", "wait; wait; sleep 1000")))
        pids = self.folder / "worker.sh.pids"
        wait_for(lambda: len(list(pids.glob("[0-9]"))) == 3, lambda: job.poll())
        job.kill()
        self.expect_nothing_left()

    def test_ctrl_c_stops_all(self):
        for sent in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(sent):
                job = self.start_waiting(TWO, 3)
                job.send_signal(sent)
                _, err = job.communicate(timeout=DEADLINE_S)
                self.assertEqual(job.returncode, 128 + sent, err)
                self.assertIn(f"stopped by {sent.name}", err)
                self.expect_nothing_left()
                self.forget_pids()

    def test_a_wrong_command_line_is_told_before_anything_starts(self):
        for hosts, arguments, part in ((TWO, ["--standalone", "true"], "--hosts with --standalone"),
                                       ("a,a", ["true"], "a is listed twice"),
                                       ("/nowhere/hosts", ["true"], "there is no such file"),
                                       (TWO, ["--max-restarts=x", "true"], "--max-restarts='x'"),
                                       (TWO, [], "no program given")):
            code, _, err = self.run_job(hosts, *arguments)
            self.assertEqual(code, 2, err)
            self.assertIn(part, err)
            self.assertEqual(err.count("\n"), 1, err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
