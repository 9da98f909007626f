"""What users see of running jobs, and how they steer them: lockstep ps and its like.

Usage: live_view.py LOCKSTEP [unittest arguments]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from rendezvous_job import DEADLINE_S, WORKER, Agent, is_running, wait_for, wait_for_round

LOCKSTEP = os.path.abspath(sys.argv[1])


class LiveTest(unittest.TestCase):
    """Jobs that nothing else on the machine sees: their sockets are in a folder of their own."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.sockets = self.directory / "sockets"
        self.sockets.mkdir()
        self.environment = {"TMPDIR": str(self.sockets)}
        self.worker = self.directory / "worker.sh"
        self.write_worker(WORKER)
        self.agents = 0

    def write_worker(self, script):
        self.worker.write_text(script)
        self.worker.chmod(0o700)

    def start(self, *flags, environment=None):
        self.agents += 1
        directory = self.directory / f"agent-{self.agents}"
        directory.mkdir()
        agent = Agent([LOCKSTEP, "run", *flags, self.worker], directory,
                      self.environment | (environment or {}))
        self.addCleanup(agent.end)
        return agent

    def start_one(self, *flags, **options):
        """A job on this machine, once its workers run and it is to be seen."""
        agent = self.start("--standalone", *flags, **options)
        wait_for_round([agent])
        self.status_of(agent)
        return agent

    def call(self, *arguments, check=True):
        """Of a command of lockstep: what it printed."""
        done = subprocess.run([LOCKSTEP, *map(str, arguments)], env=os.environ | self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=DEADLINE_S, check=False)
        if check:
            self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def statuses(self):
        return json.loads(self.call("ps", "--json").stdout)

    def status_of(self, agent):
        """Once there is one."""
        return wait_for(lambda: next((s for s in self.statuses() if s["pid"] == agent.pid), None),
                        agent.said)


class PsTest(LiveTest):
    def test_two_jobs_are_shown_with_their_workers(self):
        first = self.start_one("--rdzv-id=first", "--nproc-per-node=2", "--max-restarts=3")
        second = self.start_one("--rdzv-id=second")
        lines = self.call("ps").stdout.splitlines()
        self.assertEqual(lines[0].split()[:3], ["JOB", "PID", "STATE"])
        self.assertEqual([line.split()[:3] for line in lines[1:]],
                         [["first", str(first.pid), "running"], ["second", str(second.pid), "running"]])
        workers = self.call("ps", "first", "--workers").stdout.splitlines()[2:]
        self.assertEqual([line.split("  ")[1:4] for line in workers],
                         [[f"rank {w.rank}", f"local rank {w.rank}", f"pid {w.pid}"]
                          for w in first.workers()])
        status = self.status_of(first)
        self.assertEqual({k: status[k] for k in ("job", "state", "generation", "max_restarts", "world_size",
                                                 "node_rank", "node_count", "healthy")},
                         {"job": "first", "state": "running", "generation": 1, "max_restarts": 3,
                          "world_size": 2, "node_rank": 0, "node_count": 1, "healthy": True})
        self.assertGreater(status["workers"][0]["resident_bytes"], 100_000)

    def test_a_restart_is_shown_with_its_cause(self):
        agent = self.start_one("--max-restarts=2")
        os.kill(agent.workers()[0].pid, signal.SIGKILL)
        wait_for(lambda: len(agent.workers()) == 1 and agent.workers()[0].attempt == 1, agent.said)
        status = wait_for(lambda: (s := self.status_of(agent))["generation"] == 2 and s, agent.said)
        self.assertEqual(status["restarts"], 1)
        self.assertIn("killed by SIGKILL", status["cause"])

    def test_a_launcher_that_is_stopped_hangs_nothing(self):
        stopped = self.start_one("--rdzv-id=stopped")
        running = self.start_one("--rdzv-id=running")
        stopped.process.send_signal(signal.SIGSTOP)
        self.addCleanup(stopped.process.send_signal, signal.SIGCONT)
        lines = [line.split(maxsplit=2) for line in self.call("ps").stdout.splitlines()[1:]]
        self.assertIn([str(stopped.pid), str(stopped.pid), "does not answer"], lines)
        self.assertEqual(lines[0][:2], ["running", str(running.pid)])

    def test_jobs_with_one_id_are_called_by_their_pids(self):
        agents = [self.start_one("--rdzv-id=same") for _ in range(2)]
        names = [line.split()[0] for line in self.call("ps").stdout.splitlines()[1:]]
        self.assertEqual(sorted(names), sorted(str(agent.pid) for agent in agents))
        refused = self.call("ps", "same", check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("job 'same' has 2 launchers here; name one of them: ", refused.stderr)
        self.call("ps", agents[0].pid)

    def test_nothing_runs(self):
        self.assertEqual(self.call("ps").stdout, "no job of this user runs here\n")
        self.assertEqual(self.statuses(), [])
        self.assertEqual(self.call("ps", "job", check=False).returncode, 2)

    def test_nobody_else_may_enter(self):
        self.start_one()
        folder, = self.sockets.glob("*_control_*")
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)

    def test_nothing_is_left_after_any_end(self):
        for flags in ([], ["--log-dir", self.directory / "logs", "--tee=3"]):
            for sent in (signal.SIGTERM, signal.SIGKILL):
                agent = self.start_one(*flags)
                self.assertTrue(list(self.sockets.glob("*_control_*")))
                agent.process.send_signal(sent)
                agent.ended()
                wait_for(lambda: not list(self.sockets.iterdir()),
                         lambda: f"still there: {list(self.sockets.iterdir())}")

    def test_a_job_runs_without_a_socket_too(self):
        agent = self.start("--standalone", f"--log-dir={self.directory / 'logs'}",
                           environment={"TMPDIR": str(self.directory / "nowhere")})
        wait_for_round([agent])
        agent.wait_until_said("lockstep ps will not show this job: ")
        agent.process.send_signal(signal.SIGTERM)
        self.assertEqual(agent.ended(), 128 + signal.SIGTERM)

    def test_a_long_path_is_no_obstacle(self):
        self.sockets = self.directory / ("long" * 40)
        self.sockets.mkdir()
        self.environment["TMPDIR"] = str(self.sockets)
        self.start_one("--rdzv-id=job")
        self.assertIn("job", self.call("ps").stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
