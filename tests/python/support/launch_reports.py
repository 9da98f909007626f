"""The launcher's reports of workers that fail or hang, as values. Unit tests in launcher/ and diagnose/ check the
wording."""

import dataclasses
import re

WORKER = r"rank (?P<rank>\d+) \((?:local rank (?P<local_rank>\d+), )?pid (?P<pid>\d+)\)"
KEPT = r"; ranks? (?P<kept>[\d, -]+) kept$"
FAILURE = re.compile(
    "(?P<is_first>job failed: )?" + WORKER + r"(?: on (?P<machine>\S+))? "
    r"(?:(?P<is_hang>killed after a hang)|killed by (?P<signal>SIG\w+)|exited with code (?P<exit_code>\d+)|failed)"
    r"(?: at step (?P<step>\d+))?(?P<said>.*?)(?: at step (?P<step_of_crash>\d+))?"
    rf"(?:; restart (?P<restart>\d+) of \d+)?(?:{KEPT})?$", re.M)
HANG = re.compile(
    "^lockstep: hang: " + WORKER
    + r" (?P<stage>never entered|has begun|has left|is in|is stopped by a signal, and is in no collective \(last:)"
    r" (?P<operation>.+?)"
    r"(?: number (?P<sequence>\d+))? of group '(?P<group>[^']*)'(?: \((?P<about>.*?)\))?\)?(?:, (?P<state>.*?))?"
    r"(?:; ranks? (?P<waiting>[\d, -]+) ha(?:s|ve) waited for (?P<waited_ms>\d+) ms)?$"
    r"(?:\nlockstep:   main thread is in (?P<main_thread>.*)$)?", re.M)


@dataclasses.dataclass(frozen=True)
class Failure:
    rank: int
    local_rank: int
    pid: int
    machine: str        # of several
    is_first: bool      # it ends the job
    step: int
    is_hang: bool       # the launcher killed it, as others waited for it
    signal: str
    exit_code: int
    said: str           # the rest: its error, where it was
    restart: int        # the number of the restart that follows
    kept: list          # ranks of its machine that stay, with their state


@dataclasses.dataclass(frozen=True)
class Hang:
    rank: int
    local_rank: int
    pid: int
    stage: str
    operation: str
    sequence: int
    group: str
    about: str
    state: str          # what it does instead
    main_thread: str
    waiting: list       # ranks
    waited_ms: int
    is_stopped: bool    # by a signal


def values_of(match):
    numbers = ("rank", "local_rank", "pid", "step", "exit_code", "restart", "sequence", "waited_ms")
    truths = ("is_first", "is_hang")
    lists = ("kept", "waiting")
    texts = match.groupdict()
    texts["local_rank"] = texts["local_rank"] or texts["rank"]
    if step_of_crash := texts.pop("step_of_crash", None):
        texts["step"] = step_of_crash
    return {name: text is not None if name in truths else ranks_in(text or "") if name in lists
            else int(text) if text and name in numbers else text for name, text in texts.items()}


def failures(text):
    return [Failure(**values_of(match)) for match in FAILURE.finditer(text)]


def failures_of(rank, text):
    return [failure for failure in failures(text) if failure.rank == rank]


def restarts(text):
    """The numbers of the restarts that follow, in the order of the lines: of ranks that failed or left their group."""
    return [int(number) for number in re.findall(r"; restart (\d+) of \d+", text)]


def recoveries(text):
    """How often others went on with their state when one failed or left its group."""
    return len(re.findall(KEPT, text, re.M))


def hangs(text):
    return [Hang(**values_of(match), is_stopped="is stopped by a signal" in match[0]) for match in HANG.finditer(text)]


def ranks_in(text):
    """The ranks that a list such as "0, 2-4" names."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return [rank for part in ends for rank in range(part[0], part[-1] + 1)]
