"""`lockstep doctor`: on this machine, and on several that cannot reach each other in every way.

    doctor.py LOCKSTEP [unittest arguments]

Machines are network namespaces; a script that enters them stands for ssh.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from missing import enter_for_class
from network_namespaces import BridgedMachines, call

LOCKSTEP = os.path.abspath(sys.argv[1])
# A bound on what hangs.
DEADLINE_S = 60
COUNT = 3

SSH = """#!/bin/sh
case $1 in {cases}
silent) exec sleep 1000;;
*) echo "ssh: Could not resolve hostname $1" >&2; exit 255;;
esac
# The name and the list of names are of that machine alone.
exec ip netns exec "$namespace" unshare --uts sh -c \\
  'hostname "$1"; mount --bind "{folder}/hosts.$1" /etc/hosts; exec sh -c "$2"' sh "$1" "$2"
"""


def names(count=COUNT):
    return [BridgedMachines.host_name(machine) for machine in range(count)]


class AloneTest(unittest.TestCase):
    def run_doctor(self, *arguments, **variables):
        return subprocess.run([LOCKSTEP, "doctor", *arguments], capture_output=True, text=True,
                              timeout=DEADLINE_S, check=False, env=os.environ | variables)

    def test_every_line_has_a_level(self):
        ended = self.run_doctor(LOCKSTEP)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        for line in ended.stdout.splitlines():
            self.assertRegex(line, r"^(ok   |warn ) [A-Za-z ]+: .+$")
        for subject in ("host name", "interface", "shared memory", "temporary files", "open files", "processes",
                        "locked memory", "processors", "memory", "versions", "GPUs", "program"):
            self.assertIn(f"  {subject}: ", ended.stdout)

    def test_what_fails_is_the_exit_code(self):
        ended = self.run_doctor("./nothing")
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("fail  program: no such program: ./nothing", ended.stdout.splitlines()[-1])
        with tempfile.TemporaryDirectory() as folder:
            ended = self.run_doctor(TMPDIR=f"{folder}/none")
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("fail  temporary files: ", ended.stdout)
        limited = subprocess.run(["sh", "-c", 'ulimit -n 100; exec "$0" doctor', LOCKSTEP],
                                 capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertIn("fail  open files: at most 100; ulimit -n 65536", limited.stdout)

    def test_json(self):
        ended = self.run_doctor("--json", "./nothing")
        told = json.loads(ended.stdout)
        self.assertFalse(told["ok"])
        self.assertEqual([each["subject"] for each in told["findings"] if each["level"] == "fail"],
                         ["program"])

    def test_a_python_program_is_looked_at_with_its_python(self):
        ended = self.run_doctor(__file__, PYTHON_EXEC=sys.executable)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn(f"Python: {sys.executable}", ended.stdout)


class SeveralTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.machines = enter_for_class(cls, BridgedMachines(COUNT))

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)
        cases = " ".join(f"{name}) namespace={self.machines.names[machine]};;\n"
                         for machine, name in enumerate(names()))
        (self.folder / "ssh").write_text(SSH.format(cases=cases, folder=self.folder), "utf-8")
        (self.folder / "ssh").chmod(0o700)
        for name in names():
            self.write_hosts(name, {other: BridgedMachines.address(machine)
                                    for machine, other in enumerate(names())})

    def write_hosts(self, name, addresses):
        lines = ["127.0.0.1 localhost", *(f"{address} {other}" for other, address in addresses.items())]
        (self.folder / f"hosts.{name}").write_text("\n".join(lines) + "\n", "utf-8")

    def examine(self, *arguments, hosts=None, timeout="--timeout=2"):
        ended = subprocess.run([LOCKSTEP, "doctor", f"--hosts={','.join(hosts or names())}", timeout,
                                f"--ssh-command={self.folder}/ssh", *arguments], capture_output=True,
                               text=True, timeout=DEADLINE_S, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    def expect_failures(self, told, *parts):
        code, text = told
        self.assertEqual(code, 1, text)
        failures = [line for line in text.splitlines() if line.startswith("fail ")]
        self.assertEqual(len(failures), len(parts), text)
        for line, part in zip(failures, parts):
            self.assertIn(part, line)

    def test_machines_that_reach_each_other(self):
        code, text = self.examine(LOCKSTEP, timeout="--timeout=20")
        self.assertEqual(code, 0, text)
        self.assertIn("ok    connections: all 3 machines can connect to each other, round trip ", text)
        for part in ("wall clocks: at most", "lockstep: the same file on all", "program: the same file"):
            self.assertIn(f"ok    {part}", text)
        self.assertNotIn("warn", text)

    def drop_connections(self, machine, source):
        """From a source, as a firewall does; answers to the machine's own, at other ports, get through."""
        rule = ["to", self.machines.address(machine), "ipproto", "tcp", "dport", "15000-28999",
                "unreachable"]
        call("ip", "-n", self.machines.names[source], "rule", "add", "priority", "1", *rule)
        self.addCleanup(call, "ip", "-n", self.machines.names[source], "rule", "del", *rule)

    def test_a_direction_that_is_cut_is_named(self):
        self.drop_connections(1, source=2)
        self.expect_failures(self.examine(),
                             "machine-2: connections: cannot connect to machine-1 (10.213.78.2: Network is unreachable), "
                             "but machine-1 can connect to it; let the firewall of machine-1")

    def test_a_machine_that_is_cut_off_is_named_with_all_others(self):
        self.machines.pull_cable(1)
        self.addCleanup(self.machines.plug_cable_in, 1)
        self.expect_failures(self.examine(),
                             "machine-1: interface: cable (10.213.78.2) is without a carrier",
                             "machine-0: connections: neither it nor machine-1 can connect to the other",
                             "machine-1: connections: neither it nor machine-2 can connect to the other")

    def test_an_interface_that_is_off(self):
        namespace = self.machines.names[1]
        call("ip", "-n", namespace, "link", "set", "cable", "down")
        self.addCleanup(call, "ip", "-n", namespace, "link", "set", "cable", "up")
        code, text = self.examine()
        self.assertEqual(code, 1, text)
        self.assertIn("fail  machine-1: interface: route to machine-0: Network is unreachable; give this "
                      "machine a route to the others", text)

    def test_names_that_mean_loopback(self):
        self.take_machine_0_for_loopback()
        for machine in (0, 1):  # a way to elsewhere, from which a machine learns its address
            route = ["default", "dev", "cable"]
            call("ip", "-n", self.machines.names[machine], "route", "add", *route)
            self.addCleanup(call, "ip", "-n", self.machines.names[machine], "route", "del", *route)
        told = self.examine()
        self.expect_failures(told, "machine-1: rendezvous: machine-0 resolves to 127.0.1.1 there")
        self.assertIn("warn  machine-0: host name: machine-0 resolves to 127.0.1.1, which is loopback",
                      told[1])

    def test_an_address_that_is_of_no_use_to_others(self):
        self.take_machine_0_for_loopback()
        self.expect_failures(
            self.examine(), "machine-1: rendezvous: machine-0 resolves to 127.0.1.1 there",
            "machine-0: address: it gives 127.0.0.1 to the others, but machine-1 cannot connect to that "
            "(Connection refused); start its launcher with --local-addr=10.213.78.1",
            "machine-1: address: it gives 127.0.0.1 to the others, but machine-0 cannot connect")

    def take_machine_0_for_loopback(self):
        for machine in (0, 1):
            addresses = {name: BridgedMachines.address(other) for other, name in enumerate(names())}
            self.write_hosts(names()[machine], addresses | {"machine-0": "127.0.1.1"})

    def test_what_is_not_the_same(self):
        call("ip", "-n", self.machines.names[2], "link", "set", "cable", "mtu", "1400")
        self.addCleanup(call, "ip", "-n", self.machines.names[2], "link", "set", "cable", "mtu", "1500")
        ssh = self.folder / "ssh"
        program = self.folder / "program"
        # Each machine has a program of its own there.
        for name in names():
            (self.folder / f"program.{name}").write_text(f"#!/bin/sh\n# {name != names()[2]}\n")
            (self.folder / f"program.{name}").chmod(0o700)
        program.touch()
        ssh.write_text(ssh.read_text().replace(
            "exec sh -c", f'mount --bind "{self.folder}/program.$1" {program}; exec sh -c'))
        code, text = self.examine(program)
        self.assertEqual(code, 0, text)
        self.assertIn("warn  MTU: differs: 1400 on machine-2; 1500 on machine-0, machine-1", text)
        self.assertRegex(text, r"warn  program: files differ: \w+ on [^;]+; \w+ on ")

    def test_a_machine_that_is_not_there(self):
        self.expect_failures(self.examine(hosts=[*names(2), "nobody"]),
                             "nobody: machine: cannot be reached: ssh: Could not resolve hostname nobody")

    def meet(self, *arguments, machines=range(COUNT)):
        """The same command on each, which find each other; what each ended with and said."""
        jobs = []
        for machine in machines:
            command = [f"{self.folder}/ssh", names()[machine],
                       f"LOCKSTEP_JOB_SECRET=secret exec {LOCKSTEP} doctor --nnodes={len(machines)} "
                       f"--rdzv-endpoint=machine-0:29876 --timeout=2 {' '.join(map(str, arguments))}"]
            jobs.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True))
            self.addCleanup(jobs[-1].kill)
        ended = [job.communicate(timeout=DEADLINE_S) for job in jobs]
        return [(job.returncode, out, err) for job, (out, err) in zip(jobs, ended)]

    def test_machines_that_meet_by_themselves(self):
        for code, out, err in self.meet(LOCKSTEP):
            self.assertEqual(code, 0, out + err)
            self.assertIn("ok    connections: all 3 machines can connect to each other", out)
            self.assertIn("ok    machine-2: checks: ", out)

    def test_one_that_meets_nobody_says_what_it_sees(self):
        command = [f"{self.folder}/ssh", "machine-0", f"LOCKSTEP_JOB_SECRET=secret exec {LOCKSTEP} doctor "
                   "--nnodes=2 --rdzv-endpoint=machine-0:29876 --timeout=0.3"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("1 of at least 2 machines joined in time", result.stderr)
        self.assertIn("ok    memory: ", result.stdout)
        self.assertIn("fail  machines: the rendezvous of 2 machines failed", result.stdout)

    def test_all_that_meet_are_told_of_a_cut(self):
        self.drop_connections(1, source=2)
        for code, out, err in self.meet(LOCKSTEP):
            self.expect_failures((code, out + err), "machine-2: connections: cannot connect to machine-1")

    def test_a_machine_that_does_not_answer(self):
        self.expect_failures(self.examine(hosts=[*names(2), "silent"], timeout="--timeout=0.5"),
                             "silent: machine: did not answer within the timeout")

    def test_json_has_every_matter(self):
        code, text = self.examine("--json", hosts=names(2))
        self.assertEqual(code, 0, text)
        told = json.loads(text)
        self.assertTrue(told["ok"])
        self.assertEqual({each["machine"] for each in told["findings"]}, {"", *names(2)})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
