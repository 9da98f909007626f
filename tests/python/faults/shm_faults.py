"""What ranks that share memory do when one of them dies, stops, leaves or lacks memory: real
processes, over the backend shm.

Usage: shm_faults.py SHM_WORKER [unittest arguments]
"""

import os
import pathlib
import resource
import signal
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import some
from free_ports import free_port
from processes import open_files
from rank_process import RankProcess, place
from sanitizers import is_sanitized

WORKER = os.path.abspath(sys.argv[1])
VICTIM = 1
COLLECTIVES = {
    "small": "all_reduce", "private": "all_reduce", "shared": "all_reduce",
    "broadcast": "broadcast", "all_to_all": "all_to_all", "barrier": "barrier", "recv": "recv",
}
MEMORY_GROUPS = "/sys/fs/cgroup/memory"
# The sanitizers take more address space than a limit leaves, and more memory.
SANITIZED = is_sanitized(WORKER)
# The deadline of ranks of which one is stopped: longer than any collective of theirs takes.
LATE_S = 10 if SANITIZED else 1


class Rank(RankProcess):
    def __init__(self, test, arguments, prefix=(), prepare=None, **environment):
        super().__init__(test, [*prefix, WORKER, *arguments], environment, preexec_fn=prepare)

    def finish(self, text_in=None):
        """The exit code, the name of the error that it ended with, and what it wrote to stderr."""
        code, output, errors = super().finish(text_in)
        last = output.split("\n")[-2].split() if output else []
        return code, last[0] if last else "", errors


def memory_files(pid):
    """Inodes of the files in memory that a process has mapped or holds open."""
    found = set()
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
            for line in maps:
                if "/memfd:lockstep" in line:
                    found.add(int(line.split()[4]))
        for path, target in open_files(pid).items():
            if target.startswith("/memfd:lockstep"):
                found.add(os.stat(path).st_ino)
    except OSError:
        pass  # Gone in between, or not ours to look at.
    return found


def sockets_named_lockstep(pid):
    """Unix sockets of a process by which others could still reach it."""
    inodes = set(open_files(pid).values())
    with open(f"/proc/{pid}/net/unix", encoding="utf-8") as file:
        return [line for line in file
                if "@lockstep" in line and f"socket:[{line.split()[6]}]" in inodes]


def all_pids():
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]


class Job:
    """The ranks of a job, all running, and a look at what they leave behind."""

    def __init__(self, test, world_size, action, **environment):
        self.test = test
        environment = {"LOCKSTEP_BACKEND": "shm"} | environment
        port = free_port()
        self.ranks = [
            Rank(test, [action], **place(r, world_size, port, **environment))
            for r in range(world_size)]
        for rank in self.ranks:
            rank.wait_for_line("running")
        self.files = set().union(*(memory_files(rank.pid) for rank in self.ranks))
        test.assertTrue(self.files, "no rank has a file in memory")
        for rank in self.ranks:
            test.assertEqual(sockets_named_lockstep(rank.pid), [])
            with open(f"/proc/{rank.pid}/maps", encoding="utf-8") as maps:
                test.assertNotIn("/dev/shm", maps.read())

    def __getitem__(self, rank):
        return self.ranks[rank]

    def survivors(self, victim):
        return [(r, rank) for r, rank in enumerate(self.ranks) if r != victim]

    def expect_nothing_left(self):
        for rank in self.ranks:
            self.test.assertIsNotNone(rank.process.poll())
        left = [pid for pid in all_pids() if memory_files(pid) & self.files]
        self.test.assertEqual(left, [], "processes that still have the job's memory")


class ShmFaults(unittest.TestCase):
    def expect_text(self, rank, name, *patterns, text_in=None):
        status, error, text = rank.finish(text_in)
        self.assertEqual((status, error), (1, name), text)
        for pattern in patterns:
            self.assertRegex(text, pattern)
        self.assertEqual(text.count("\n"), 1, f"more than one line: {text}")

    def expect_blamed(self, rank, name, blamed, own_rank, operation, **fields):
        """Ended with an error that names whose fault it is, in which collective."""
        found = rank.expect_error(name, operation=operation, group="default", own_rank=own_rank, ranks=[blamed],
                                  **fields)
        self.assertGreaterEqual(found["sequence"], 0)

    # Death.

    def test_a_killed_rank_is_named_by_every_survivor_in_every_collective(self):
        for action, collective in some(COLLECTIVES.items(), 3):
            with self.subTest(action=action):
                job = Job(self, 3, action)
                job[VICTIM].process.kill()
                for r, rank in job.survivors(VICTIM):
                    self.expect_blamed(rank, "PeerLost", VICTIM, r, collective)
                job[VICTIM].finish()
                job.expect_nothing_left()

    def test_the_first_and_the_last_rank_may_die_too(self):
        for victim in (0, 3):
            with self.subTest(victim=victim):
                job = Job(self, 4, "private")
                job[victim].process.kill()
                for r, rank in job.survivors(victim):
                    self.expect_blamed(rank, "PeerLost", victim, r, "all_reduce")
                job[victim].finish()
                job.expect_nothing_left()

    def test_a_rank_that_crashes_is_named(self):
        job = Job(self, 2, "small")
        job[VICTIM].process.send_signal(signal.SIGSEGV)
        self.expect_text(job[0], "PeerLost", r"all_reduce number \d+ of group 'default' on rank 0: a peer is gone: "
                         rf"rank 1 \(pid {job[VICTIM].pid}\) ended; see its output for the reason")

    def test_a_rank_that_ends_early_is_named(self):
        for action, code in (("return", 0), ("exit", 0), ("throw", 1)):
            with self.subTest(action=action):
                job = Job(self, 3, action)
                job[VICTIM].process.stdin.write("\n")
                job[VICTIM].process.stdin.flush()
                for r, rank in job.survivors(VICTIM):
                    self.expect_blamed(rank, "PeerLost", VICTIM, r, "all_reduce")
                self.assertEqual(job[VICTIM].finish()[0], code)
                job.expect_nothing_left()

    # Hanging.

    def test_a_stopped_rank_is_named_at_the_deadline_and_ends_too_when_it_goes_on(self):
        for action in ("small", "private", "shared", "barrier"):
            for victim in (0, 2):
                with self.subTest(action=action, victim=victim):
                    job = Job(self, 3, action, LOCKSTEP_TIMEOUT_S=LATE_S)
                    job[victim].process.send_signal(signal.SIGSTOP)
                    for r, rank in job.survivors(victim):
                        self.expect_blamed(rank, "TimeoutError", victim, r, COLLECTIVES[action],
                                           timeout_ms=LATE_S * 1000)
                    job[victim].process.send_signal(signal.SIGCONT)
                    self.expect_blamed(job[victim], "TimeoutError", victim, victim, COLLECTIVES[action])
                    job.expect_nothing_left()

    def test_who_is_late_is_said_in_words(self):
        job = Job(self, 2, "small", LOCKSTEP_TIMEOUT_S=LATE_S)
        job[VICTIM].process.send_signal(signal.SIGSTOP)
        self.expect_text(job[0], "TimeoutError", rf"all_reduce number \d+ of group 'default' on rank 0: "
                         rf"not complete within {LATE_S}000 ms, waiting for rank 1 \(pid {job[VICTIM].pid}\)")
        job[VICTIM].process.send_signal(signal.SIGCONT)
        self.expect_text(job[VICTIM], "TimeoutError", "this rank was late: the timeout of its peers expired")

    # Aborting.

    def test_abort_from_another_thread_ends_the_calls_of_all_ranks(self):
        job = Job(self, 3, "abort")
        pid = job[0].pid
        self.expect_text(job[0], "PeerLost", rf"rank 0 \(pid {pid}\) aborted the group",
                         text_in="\n")
        for r, collective in ((1, "recv"), (2, "all_reduce")):
            self.expect_blamed(job[r], "PeerLost", 0, r, collective)
        job.expect_nothing_left()

    # Where memory is short or not to be shared.

    def ranks(self, settings, address="127.0.0.1", port=None, **environment):
        port = port or free_port()
        where = environment | {"MASTER_ADDR": address}
        return [Rank(self, ["once"], **(place(r, len(settings), port) | setting | where))
                for r, setting in enumerate(settings)]

    def expect_gloo(self, settings, **where):
        """All ranks end well, after at most one line that says what they use instead."""
        outcomes = [rank.finish() for rank in self.ranks(settings, **where)]
        self.assertEqual([status for status, _, _ in outcomes], [0] * len(settings), outcomes)
        return "".join(text for _, _, text in outcomes)

    def expect_no_shm(self, settings, pattern, **where):
        for rank in self.ranks(settings, LOCKSTEP_BACKEND="shm", **where):
            self.expect_text(rank, "BackendUnavailable", "cannot share memory", pattern)

    @unittest.skipIf(SANITIZED, "a sanitizer needs the address space")
    def test_a_limit_of_address_space_on_one_rank_or_all(self):
        # Less than the address space that a rank's heap takes: as much as there is memory.
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        bytes_most = min(20 << 30, total // 4 * 3)
        limited = {"prepare": lambda: resource.setrlimit(resource.RLIMIT_AS,
                                                         (bytes_most, bytes_most))}
        for settings in ([limited, limited], [{}, limited], [limited, {}]):
            with self.subTest(limited=[bool(setting) for setting in settings]):
                warning = self.expect_gloo(settings)
                self.assertRegex(warning, "warning: .*ulimit -v.*using gloo instead")
                self.assertEqual(warning.count("\n"), 1, warning)
                self.expect_no_shm(settings, "ulimit -v")

    @unittest.skipIf(SANITIZED, "Gloo's threads are not instrumented")
    def test_a_limit_of_file_sizes(self):
        limited = {"prepare": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))}
        settings = [limited, limited]
        warning = self.expect_gloo(settings)
        self.assertRegex(warning, "warning: .*ulimit -f.*using gloo instead")
        self.assertEqual(warning.count("\n"), 1, warning)
        self.expect_no_shm(settings, "ulimit -f")

    @unittest.skipIf(SANITIZED, "a sanitizer needs the memory")
    @unittest.skipUnless(os.access(MEMORY_GROUPS, os.W_OK), "no memory control group to write to")
    def test_the_memory_limit_of_a_control_group_is_an_error_and_no_signal(self):
        group = f"{MEMORY_GROUPS}/lockstep-{os.getpid()}"
        os.mkdir(group)
        self.addCleanup(os.rmdir, group)
        with open(f"{group}/memory.limit_in_bytes", "w", encoding="utf-8") as file:
            file.write(str(1 << 30))

        def enter():
            with open(f"{group}/cgroup.procs", "w", encoding="utf-8") as file:
                file.write(str(os.getpid()))

        job = Job(self, 2, "fill", prepare=enter)
        self.expect_text(job[VICTIM], "SystemError", "bytes are free", "memory limit")
        self.expect_blamed(job[0], "PeerLost", VICTIM, 0, "barrier")

    @unittest.skipIf(os.geteuid() != 0, "only root may make namespaces")
    def test_a_small_dev_shm_does_not_matter(self):
        small = {"prefix": ["unshare", "--mount", "sh", "-c",
                            'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh"]}
        for rank in self.ranks([small, small], LOCKSTEP_BACKEND="shm"):
            self.assertEqual(rank.finish(), (0, "running", ""))

    @unittest.skipIf(SANITIZED, "Gloo's threads are not instrumented")
    @unittest.skipIf(os.geteuid() != 0, "only root may make namespaces")
    def test_ranks_of_different_network_namespaces_use_gloo(self):
        settings, address = self.two_namespaces()
        self.assertEqual(self.expect_gloo(settings, address=address), "")
        self.expect_no_shm(settings, "network namespace", address=address)

    def two_namespaces(self):
        """Settings of two ranks in namespaces that are linked, and the address of the first."""
        names = [f"lockstep-{os.getpid()}-{side}" for side in (0, 1)]
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            self.addCleanup(subprocess.run, ["ip", "netns", "delete", name], check=True)
        subprocess.run(["ip", "link", "add", "name", "link0", "netns", names[0], "type", "veth",
                        "peer", "name", "link1", "netns", names[1]], check=True)
        for side, name in enumerate(names):
            for command in (f"address add 10.231.0.{side + 1}/24 dev link{side}",
                            f"link set link{side} up", "link set lo up"):
                subprocess.run(["ip", "-netns", name, *command.split()], check=True)
        return [{"prefix": ["ip", "netns", "exec", name]} for name in names], "10.231.0.1"


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
