"""What a launcher reports of workers that fail and hang, as values. Its wording is checked by the unit tests of
lockstep/launch."""

import dataclasses
import re

WORKER = r"rank (?P<rank>\d+) \(local rank (?P<local_rank>\d+), pid (?P<pid>\d+)\)"
OTHERS_KEPT = "; the others keep their state and go on"
FAILURE = re.compile(
    WORKER + r"(?: on (?P<machine>\S+))? failed(?P<is_first> first)?(?: in step (?P<step>\d+))?: "
    r"(?P<is_hang>killed, as it hung)?(?:killed by (?P<signal>SIG\w+)|exit code (?P<exit_code>\d+))?(?P<said>.*?)"
    rf"(?:; restart (?P<restart>\d+) of \d+)?(?P<others_kept>{OTHERS_KEPT})?$", re.M)
HANG = re.compile(
    "^lockstep: hang: " + WORKER
    + r" (?P<stage>never entered|has begun|has left|is in|is stopped by a signal, and is in none after) (?P<operation>.+?)"
    r"(?: number (?P<sequence>\d+))? of group '(?P<group>[^']*)'(?: \((?P<about>.*?)\))?(?:, (?P<state>.*?))?"
    r"(?:; main thread in (?P<main_thread>.*?))?"
    r"(?:; ranks? (?P<waiting>[\d,-]+) ha(?:s|ve) waited for (?P<waited_ms>\d+) ms)?$", re.M)


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
    others_kept: bool


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
    truths = ("is_first", "is_hang", "others_kept")
    return {name: text is not None if name in truths else int(text) if text and name in numbers else text
            for name, text in match.groupdict().items()}


def failures(text):
    return [Failure(**values_of(match)) for match in FAILURE.finditer(text)]


def failures_of(rank, text):
    return [failure for failure in failures(text) if failure.rank == rank]


def restarts(text):
    """The numbers of the restarts that follow, in the order of the lines: of ranks that failed or left their group."""
    return [int(number) for number in re.findall(r"; restart (\d+) of \d+", text)]


def recoveries(text):
    """How often others went on with their state when one failed or left its group."""
    return text.count(OTHERS_KEPT)


def hangs(text):
    found = [Hang(**values_of(match), is_stopped="is stopped by a signal" in match[0]) for match in HANG.finditer(text)]
    return [dataclasses.replace(hang, waiting=ranks_in(hang.waiting or "")) for hang in found]


def ranks_in(text):
    """The ranks that a list such as "0,2-4" names."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    return [rank for part in ends for rank in range(part[0], part[-1] + 1)]
