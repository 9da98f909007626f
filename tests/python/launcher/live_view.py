"""What users see of running jobs, and how they steer them: lockstep ps and its like.

Usage: live_view.py LOCKSTEP [unittest arguments]
"""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from free_ports import free_port
from launch_reports import failures
from processes import is_running
from rendezvous_job import DEADLINE_S, WORKER, Agent, wait_for, wait_for_generation
from sanitizers import is_sanitized

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
        wait_for_generation([agent])
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
        wait_for(lambda: len(agent.workers()) == 1 and agent.workers()[0].restarts == 1, agent.said)
        status = wait_for(lambda: (s := self.status_of(agent))["generation"] == 2 and s, agent.said)
        self.assertEqual(status["restarts"], 1)
        self.assertEqual([(failure.rank, failure.signal) for failure in failures(status["cause"])], [(0, "SIGKILL")])

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
        wait_for_generation([agent])
        agent.wait_until_said("lockstep ps will not show this job: ")
        agent.process.send_signal(signal.SIGTERM)
        self.assertEqual(agent.ended(), 128 + signal.SIGTERM)

    def test_a_long_path_is_no_obstacle(self):
        self.sockets = self.directory / ("long" * 40)
        self.sockets.mkdir()
        self.environment["TMPDIR"] = str(self.sockets)
        self.start_one("--rdzv-id=job")
        self.assertIn("job", self.call("ps").stdout)


# From before it announces itself.
IGNORES_SIGTERM = WORKER.replace("#!/bin/sh\n", "#!/bin/sh\ntrap '' TERM\n")


class StopTest(LiveTest):
    def expect_nothing_left(self, pids):
        wait_for(lambda: not any(map(is_running, pids)) and not list(self.sockets.iterdir()),
                 lambda: f"{pids} and {list(self.sockets.iterdir())}")

    def test_a_job_is_stopped_and_says_by_whom(self):
        agent = self.start_one("--nproc-per-node=2")
        pids = [worker.pid for worker in agent.workers()]
        stopped = self.call("stop")
        self.assertFalse(is_running(agent.pid) and agent.process.poll() is None)
        self.assertEqual(agent.ended(), 128 + signal.SIGTERM)
        self.assertIn(f"job {agent.pid} has ended", stopped.stderr)
        self.assertRegex(agent.said(), r"job stopped by \S+ on \S+ \(lockstep stop\)\n")
        self.expect_nothing_left(pids)
        again = self.call("stop", agent.pid, check=False)
        self.assertEqual((again.returncode, again.stderr),
                         (2, f"lockstep: no job of this user runs here, so none is called {agent.pid}\n"))

    def test_which_of_two_jobs_must_be_said(self):
        agents = [self.start_one(f"--rdzv-id={name}") for name in ("one", "two")]
        self.assertEqual(self.call("stop", check=False).returncode, 2)
        self.call("stop", "two")
        self.assertEqual(agents[1].ended(), 128 + signal.SIGTERM)
        self.assertEqual(self.status_of(agents[0])["state"], "running")

    def test_workers_that_do_not_end_are_named_and_killed_by_now(self):
        self.write_worker(IGNORES_SIGTERM)
        agent = self.start_one("--rdzv-id=job")
        pid = agent.workers()[0].pid
        log = self.directory / "stop"
        with open(log, "wb") as stderr:
            first = subprocess.Popen([LOCKSTEP, "stop"], env=os.environ | self.environment, stderr=stderr)
        self.addCleanup(first.wait)
        wait_for(lambda: f"waiting for rank 0 (pid {pid})" in log.read_text("utf-8"),
                 lambda: log.read_text("utf-8"))
        self.assertEqual(self.status_of(agent)["state"], "stopping")
        self.call("stop", "job", "--now")
        self.assertEqual(first.wait(DEADLINE_S), 0)
        self.assertEqual(agent.ended(), 128 + signal.SIGKILL)
        self.assertIn("job stopped at once by", agent.said())
        self.expect_nothing_left([pid])

    def test_a_launcher_that_is_stopped_is_said_to_be(self):
        agent = self.start_one()
        agent.process.send_signal(signal.SIGSTOP)
        self.addCleanup(agent.process.send_signal, signal.SIGCONT)
        refused = self.call("stop", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"(pid {agent.pid}) does not answer", refused.stderr)


class MachinesTest(LiveTest):
    """Two launchers that meet on loopback."""

    def setUp(self):
        super().setUp()
        self.environment["LOCKSTEP_JOB_SECRET"] = "a secret of this job"
        self.port = free_port()

    def start_two(self, *flags, **options):
        self.machines = [self.start_machine(*flags, **options)]
        self.status_of(self.machines[0])  # It serves the rendezvous now.
        self.machines.append(self.start_machine(*flags, **options))
        return wait_for_generation(self.machines)

    def start_machine(self, *flags, last_call_s=0.5, **options):
        return self.start("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                          f"--rdzv-conf=last_call_timeout={last_call_s},keep_alive_interval=0.2,"
                          "keep_alive_max_attempt=50", *flags, **options)


class TwoMachinesTest(MachinesTest):
    """What one asks of one of them reaches the other."""

    def test_a_stop_ends_the_job_on_both(self):
        for place in range(2):
            with self.subTest(told=place):
                self.port = free_port()
                before = self.start_two()
                self.status_of(self.machines[place])
                self.call("stop", self.machines[place].pid)
                for machine in self.machines:
                    self.assertEqual(machine.ended(), 128 + signal.SIGTERM)
                    self.assertRegex(machine.said(), "job stopped by .* \\(lockstep stop\\)\n$")
                wait_for(lambda: not any(map(is_running, before.pids)), lambda: before)

    def test_a_stop_now_kills_on_both(self):
        self.write_worker(IGNORES_SIGTERM)
        before = self.start_two(last_call_s=30)  # A worker of a generation of one would not leave it.
        self.call("stop", self.machines[1].pid, "--now")
        for machine in self.machines:
            self.assertEqual(machine.ended(), 128 + signal.SIGKILL)
        wait_for(lambda: not any(map(is_running, before.pids)), lambda: before)

    def test_one_machine_may_leave(self):
        before = self.start_two()
        self.call("stop", self.machines[1].pid, "--machine-only")
        self.assertEqual(self.machines[1].ended(), 128 + signal.SIGTERM)
        after = wait_for_generation(self.machines[:1], before)
        self.assertEqual(after.world_size, 1)

    def test_a_machine_that_is_cut_off_cannot_stop_the_job(self):
        self.start_two()
        served, joined = self.machines
        served.process.send_signal(signal.SIGSTOP)
        self.addCleanup(served.process.send_signal, signal.SIGCONT)
        status = wait_for(lambda: not (s := self.status_of(joined))["healthy"] and s, joined.said)
        self.assertIn("cut off from the rendezvous: the rendezvous at 127.0.0.1 port", status["health"])
        refused = self.call("stop", joined.pid, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("so the other machines cannot be notified; lockstep stop --machine-only",
                      refused.stderr)



class ScaleTest(MachinesTest):
    """What the workers themselves see is what counts."""

    def expect_world(self, agents, sizes, before):
        after = wait_for_generation(agents, before)
        self.assertEqual([len(ranks) for ranks in after.ranks], sizes)
        self.assertEqual(after.world_size, sum(sizes))
        wait_for(lambda: not any(map(is_running, before.pids)), lambda: before)
        return after

    def test_a_job_grows_and_shrinks(self):
        agent = self.start_one("--rdzv-id=job", "--max-restarts=1")
        generation = wait_for_generation([agent])
        for count in (3, 2):
            said = self.call("scale", "job", count).stderr
            self.assertIn(f"with {count} workers here, {count} in all", said)
            generation = self.expect_world([agent], [count], generation)
        status = self.status_of(agent)
        self.assertEqual((status["restarts"], status["generation"], status["worker_count"]), (0, 3, 2))
        self.assertRegex(agent.said(), r"\S+ on \S+ \(lockstep scale\) requested 3 workers on this machine \(now 1\)")
        # A failure is still one of those that --max-restarts counts.
        os.kill(generation.pids[0], signal.SIGKILL)
        generation = self.expect_world([agent], [2], generation)
        self.assertIn("restart 1 of 1", agent.said())

    def test_a_machine_of_several_is_scaled(self):
        before = self.start_two()
        self.call("scale", self.machines[1].pid, 2)
        after = self.expect_world(self.machines, [1, 2], before)
        self.assertEqual(after.ranks, [[0], [1, 2]])

    def test_numbered_machines_are_scaled_too(self):
        self.machines = [self.start("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1",
                                    f"--master-port={self.port}") for rank in range(2)]
        before = wait_for_generation(self.machines)
        self.call("scale", self.machines[1].pid, 3)
        self.assertEqual(self.expect_world(self.machines, [1, 3], before).ranks, [[0], [1, 2, 3]])

    def test_what_cannot_be_is_refused(self):
        agent = self.start_one("--rdzv-id=job")
        for arguments, status, text in ((("job", "0"), 2, "give a number from 1 to 4096; lockstep stop"),
                                        (("other", "2"), 2, "no job here is called 'other'"),
                                        (("1",), 1, "job job is not scaled: it already has 1 worker on this machine")):
            refused = self.call("scale", *arguments, check=False)
            self.assertEqual(refused.returncode, status)
            self.assertIn(text, refused.stderr)
        self.assertEqual(self.status_of(agent)["generation"], 1)


# Writes a line to each stream, and ends as the file of its generation says once that is there.
SPEAKER = """#!/bin/sh
me="$TORCHELASTIC_RESTART_COUNT-$RANK"
echo "out $me"
echo "err $me" >&2
echo "$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $$" > "$1/$me.new"
mv "$1/$me.new" "$1/$me"
while [ ! -e "$1/end-$TORCHELASTIC_RESTART_COUNT" ]; do sleep 0.02; done
echo "last of $me"
exit $(cat "$1/end-$TORCHELASTIC_RESTART_COUNT")
"""


class LogsTest(LiveTest):
    def setUp(self):
        super().setUp()
        self.write_worker(SPEAKER)
        self.logs = self.directory / "logs"

    def start_speakers(self, *flags):
        return self.start_one("--rdzv-id=job", f"--log-dir={self.logs}", "--redirects=3", *flags)

    def let_end(self, agent, attempt, status):
        new = agent.directory / "new"
        new.write_text(f"{status}\n")
        new.rename(agent.directory / f"end-{attempt}")

    def test_logs_are_followed_over_a_restart_to_the_end(self):
        agent = self.start_speakers("--nproc-per-node=2", "--max-restarts=1")
        out, err = self.directory / "out", self.directory / "err"
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            follower = subprocess.Popen([LOCKSTEP, "logs", "-f"], env=os.environ | self.environment,
                                        stdout=stdout, stderr=stderr)
        self.addCleanup(follower.kill)

        def wait_for_lines(lines):
            wait_for(lambda: sorted(out.read_text("utf-8").splitlines()) == sorted(lines),
                     lambda: out.read_text("utf-8") + err.read_text("utf-8") + agent.said())

        lines = ["[default0]:out 0-0", "[default1]:out 0-1"]
        wait_for_lines(lines)
        before = wait_for_generation([agent])
        os.kill(before.pids[1], signal.SIGKILL)
        lines += ["[default0]:out 1-0", "[default1]:out 1-1"]
        wait_for_lines(lines)
        self.assertIsNone(follower.poll())
        self.let_end(agent, 1, 0)
        self.assertEqual(agent.ended(), 0, agent.said())
        self.assertEqual(follower.wait(DEADLINE_S), 0)
        wait_for_lines([*lines, "[default0]:last of 1-0", "[default1]:last of 1-1"])
        self.assertEqual(err.read_text("utf-8").splitlines(),
                         ["lockstep: generation 1 (attempt_0)", "[default0]:err 0-0", "[default1]:err 0-1",
                          "lockstep: generation 2 (attempt_1)", "[default0]:err 1-0", "[default1]:err 1-1"])

    def test_logs_of_a_job_that_has_ended_are_there(self):
        agent = self.start_speakers("--nproc-per-node=2", "--max-restarts=1")
        self.let_end(agent, 0, 3)
        self.let_end(agent, 1, 0)
        self.assertEqual(agent.ended(), 0, agent.said())
        shown = self.call("logs", self.logs)
        self.assertEqual(shown.stdout.splitlines(),
                         ["[default0]:out 1-0", "[default0]:last of 1-0", "[default1]:out 1-1",
                          "[default1]:last of 1-1"])
        self.assertEqual(shown.stderr.splitlines(), ["[default0]:err 1-0", "[default1]:err 1-1"])
        directory, = self.logs.iterdir()
        shown = self.call("logs", directory, "-f", "--local-rank=1", "--lines=1")
        self.assertEqual(shown.stdout.splitlines(), ["[default1]:last of 1-1"])
        shown = self.call("logs", directory, "--attempt=0", "--lines=1", "--local-rank=0")
        self.assertEqual(shown.stderr.splitlines(), ["[default0]:err 0-0"])
        missing = self.call("logs", directory, "--attempt=2", check=False)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("there are no such logs in", missing.stderr)

    def test_a_job_without_logs_says_how_to_have_them(self):
        self.start_one("--rdzv-id=job")
        refused = self.call("logs", check=False)
        self.assertEqual((refused.returncode, refused.stderr),
                         (1, "lockstep: job job writes no logs; start it with --log-dir=DIR and --tee=3 "
                          "(console and files) or --redirects=3 (files)\n"))


class HealthTest(MachinesTest):
    """What is told on a port."""

    def ask(self, port, path):
        """The status and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            self.content_type = response.getheader("Content-Type")
            return response.status, response.read().decode()

    def start_healthy(self, *flags):
        self.health_port = free_port()
        return self.start_one(*flags, environment={"TORCHELASTIC_HEALTH_CHECK_PORT": str(self.health_port)})

    def start_with_health(self, *flags):
        """The second of two machines, once both run."""
        self.machines = [self.start_machine(*flags)]
        self.status_of(self.machines[0])
        self.health_port = free_port()
        joined = self.start_machine(
            *flags, environment={"TORCHELASTIC_HEALTH_CHECK_PORT": str(self.health_port)})
        wait_for_generation([*self.machines, joined])
        return joined

    def test_a_job_that_runs_is_healthy(self):
        self.start_healthy("--rdzv-id=job")
        status, text = self.ask(self.health_port, "/healthz")
        self.assertEqual(status, 200)
        self.assertRegex(text, r"^running; generation 1, workers run for \d+ s\n$")
        status, text = self.ask(self.health_port, "/status")
        self.assertEqual((status, json.loads(text)["job"]), (200, "job"))

    def test_nobody_may_steer_by_the_port(self):
        agent = self.start_healthy()
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/stop", json.dumps({"by": "a stranger", "at_once": True}))
            self.assertEqual(connection.getresponse().status, 404)
        self.assertEqual(self.status_of(agent)["state"], "running")

    def test_metrics_are_openmetrics(self):
        self.start_healthy('--rdzv-id=a "job"', "--nproc-per-node=2", "--max-restarts=3")
        status, text = self.ask(self.health_port, "/metrics")
        self.assertEqual((status, self.content_type),
                         (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"))
        try:
            from prometheus_client.openmetrics import parser
        except ImportError:
            self.skipTest("prometheus_client is not installed")
        families = {family.name: family for family in parser.text_string_to_metric_families(text)}
        self.assertEqual(families["lockstep_job"].samples[0].labels["job"], 'a "job"')
        self.assertEqual({sample.labels["lockstep_state"]: sample.value
                          for sample in families["lockstep_state"].samples},
                         {"gathering": 0, "running": 1, "stopping": 0, "succeeded": 0, "failed": 0})
        self.assertEqual([sample.value for sample in families["lockstep_worker_running"].samples], [1, 1])
        self.assertEqual(families["lockstep_max_restarts"].samples[0].value, 3)
        start = families["lockstep_start_time_seconds"].samples[0].value
        self.assertLess(abs(time.time() - start), 2 * DEADLINE_S)

    def test_who_is_cut_off_is_not_healthy_until_it_is_back(self):
        joined = self.start_with_health()
        port = self.health_port
        self.assertEqual(self.ask(port, "/healthz")[0], 200)
        self.machines[0].process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.machines[0].process.send_signal, signal.SIGCONT)
        text = wait_for(lambda: (a := self.ask(port, "/healthz"))[0] == 503 and a[1], joined.said)
        self.assertTrue(text.startswith("cut off from the rendezvous: the rendezvous at 127.0.0.1 port "))
        self.assertRegex(text, r"; generation \d, workers run for \d+ s\n$")
        self.machines[0].process.send_signal(signal.SIGCONT)
        wait_for(lambda: self.ask(port, "/healthz")[0] == 200, joined.said)

    def test_a_job_that_fails_is_not_healthy(self):
        self.write_worker(IGNORES_SIGTERM)
        joined = self.start_with_health("--shutdown-timeout=5")
        os.kill(self.machines[0].workers()[0].pid, signal.SIGKILL)
        text = wait_for(lambda: (a := self.ask(self.health_port, "/healthz"))[0] == 503 and a[1], joined.said)
        self.assertIn("job failed: rank 0 (pid", text)
        self.assertEqual(joined.ended(), 128 + signal.SIGKILL)

    def test_a_flood_keeps_nobody_out(self):
        agent = self.start_healthy()
        before = agent.resident_kib()
        with contextlib.ExitStack() as sockets:
            for i in range(200):
                flooder = socket.create_connection(("127.0.0.1", self.health_port), DEADLINE_S)
                sockets.enter_context(flooder)
                flooder.sendall(b"GET /healthz HTTP/1.1\r\n"[:i % 20])
            self.assertEqual(self.ask(self.health_port, "/healthz")[0], 200)
            self.assertLess(len(list(pathlib.Path(f"/proc/{agent.pid}/fd").iterdir())), 60)
            if not is_sanitized(LOCKSTEP):
                self.assertLess(agent.resident_kib() - before, 1_000)
        self.assertEqual(self.status_of(agent)["state"], "running")

    def test_a_port_that_is_taken_is_said(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            agent = self.start("--standalone", environment={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)})
            self.assertEqual(agent.ended(), 1)
        self.assertEqual(agent.said(), f"lockstep: TORCHELASTIC_HEALTH_CHECK_PORT={port}: listen at "
                         "127.0.0.1: Address already in use; another program listens there; choose another "
                         "port\n")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
