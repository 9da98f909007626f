"""What is done to the processes of a job, drawn from a seed and from what they pass when nothing is done to them."""

import collections
import dataclasses
import random
import re

# How often a fault is drawn in a phase of the program ("run": anywhere), where the program has it.
PHASES = {"new_group": 4, "construction": 1, "evaluation": 3, "save": 3, "run": 4}
# What a process passes each time it meets the others, and so as often in each generation.
OF_A_MEETING = ("meet.", "connect.", "group.", "recover.grouped", "recover.compared", "recover.agreed")
# What only a process passes that has been in a generation before, once in each recovery.
OF_A_RECOVERY = ("recover.begin", "recover.left", "recover.said", "recover.placed")
# Once or twice in a process: no share of the steps comes before.
OF_A_STATE = ("recover.send", "recover.described", "recover.receive", "recover.received", "recover.taken")
CALLS_THAT_FAIL = ("file.create", "file.sync", "file.rename", "file.sync_directory", "save.delete")
# Of a job whose second rank comes later: what that one passes, and its first rank once the other is there.
OF_SECOND_RANK = ("meet.begin:1", "meet.store:1", "meet.joined:1", "connect.begin:1", "connect.reached:1",
                  "meet.connected:1", "recover.grouped:1", "recover.compared:1", "recover.receive:1",
                  "recover.received:1", "recover.taken:1", "recover.agreed:1")
OF_FIRST_RANK = ("recover.begin:1", "recover.left:1", "recover.said:1", "recover.placed:1", "meet.begin:2",
                 "meet.store:1", "meet.joined:2", "connect.begin:1", "connect.reached:1", "meet.connected:2",
                 "recover.grouped:2", "recover.compared:2", "recover.send:1", "recover.described:1",
                 "recover.agreed:2")


@dataclasses.dataclass(frozen=True)
class AtFailpoint:
    """In the process of a rank that passes `name` for the n-th time, of those started in `generation`."""
    name: str
    n: int
    action: str
    rank: int
    generation: int
    phase: str

    def __str__(self):
        return f"{self.name}:{self.n}:{self.action}:{self.rank}:{self.generation}"

    def happened(self, errors):
        return re.search(rf"^lockstep\[{self.rank}\].* failpoint {self.name}, passed {self.n} time", errors, re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class AtInstant:
    """A signal to the processes of ranks, `after_s` after the event `after` was seen `n` times: a process starts, a rank
    begins a generation, enters a phase, makes a step or ends."""
    signal: str
    ranks: tuple
    after: str
    n: int
    after_s: float
    phase: str = "instant"

    def __str__(self):
        ranks = " and ".join(map(str, self.ranks))
        return f"{self.signal} to rank {ranks} {self.after_s:.3f} s after '{self.after}' was seen {self.n} times"

    def happened(self, errors):
        return f"fuzz: {self}\n" in errors


@dataclasses.dataclass(frozen=True)
class Throws:
    """The program of a rank throws at a step."""
    rank: int
    step: int
    phase: str = "exception"

    def __str__(self):
        return f"rank {self.rank} throws at step {self.step}"

    def happened(self, errors):
        return "the program has failed" in errors


@dataclasses.dataclass(frozen=True)
class Scale:
    """The job gets another number of ranks, `after_s` after the event `begins` was seen `n` times."""
    ranks: int
    n: int
    after_s: float
    phase: str = "scale"

    def __str__(self):
        return f"{self.ranks} ranks {self.after_s:.3f} s after 'begins' was seen {self.n} times"

    def happened(self, errors):
        return f"fuzz: {self}\n" in errors


@dataclasses.dataclass(frozen=True)
class SecondMachine:
    """A second launcher joins the job, and leaves it by a signal `for_s` later where the job still runs."""
    after_s: float
    for_s: float
    signal: str
    phase: str = "second machine"

    def __str__(self):
        return f"a second machine joins after {self.after_s:.2f} s and gets {self.signal} {self.for_s:.2f} s later"

    def happened(self, errors):
        return f"fuzz: {self}\n" in errors


def event_of(text):
    """What a line of a worker says that a signal may follow: "starts", "begins", "step", "ends" or a phase; else
    nothing."""
    if text.startswith(("starts", "step ", "ends ")):
        return text.split()[0].rstrip(":")
    if " begins at " in text:
        return "begins"
    return text.removeprefix("enters ") if text.startswith("enters ") else ""


class Places:
    """What the ranks of an undisturbed job passed: of each phase the failpoints with the first and last pass of each
    time, "run" with all of the process; and how often each event was seen."""

    def __init__(self, lines):
        self.events = collections.Counter(filter(None, (event_of(text) for _, text in lines)))
        self.steps = len({text.split()[1] for _, text in lines if text.startswith("step ")})
        ranks = {pid: int(text.split()[1]) for pid, text in lines if " begins at " in text}
        self.of = {rank: {} for rank in sorted(ranks.values())}
        for pid, text in lines:
            if not text.startswith("passed ") or pid not in ranks:
                continue
            phase, name, *times = text.removeprefix("passed ").split()
            self.of[ranks[pid]].setdefault(phase.removesuffix(":"), {})[name] = [
                tuple(map(int, passes.split("-"))) for passes in times]

    def total(self, rank, name):
        return self.of[rank]["run"][name][0][1]

    def draw(self, dice, rank):
        """(phase, name, n)"""
        phases = [phase for phase in PHASES if phase in self.of[rank]]
        phase = dice.choices(phases, [PHASES[phase] for phase in phases])[0]
        name = dice.choice(sorted(self.of[rank][phase]))
        return phase, name, dice.randint(*dice.choice(self.of[rank][phase][name]))


def ranks_of(fault):
    return fault.ranks if isinstance(fault, AtInstant) else (fault.rank,)


def is_stop(fault):
    return isinstance(fault, AtInstant) and fault.signal == "SIGSTOP"


def draw_end(dice, killed, stopped):
    return killed if dice.random() < 0.85 else stopped


def draw_action(dice, name):
    if name in CALLS_THAT_FAIL and dice.random() < 0.3:
        return "eio"
    if name == "file.write" and dice.random() < 0.3:
        return dice.choice(["eio", "short"])
    return draw_end(dice, "kill", "stop")


class Drawing:
    """The failpoints of one job, each in a process that lives when the faults before it have happened."""

    def __init__(self, dice, places, ranks, faults):
        self.dice = dice
        self.places = places
        hit = {rank for fault in faults for rank in ranks_of(fault)}
        self.never_hit = [rank for rank in range(ranks) if rank not in hit]
        # A stopped rank is replaced where another waits for it.
        self.replaced_if_stopped = ranks > 1
        self.recoveries = 0
        self.replacements = []  # (rank, generation) of processes that have not been hit
        self.done = 0.0  # The share of the steps that is made by then.
        for fault in faults:
            for rank in ranks_of(fault):
                self.note(rank, not is_stop(fault))

    def note(self, rank, is_killed):
        if is_killed or self.replaced_if_stopped:
            self.recoveries += 1
            self.replacements.append((rank, self.recoveries))

    def draw(self):
        """Nothing where no process is left that it may hit."""
        if self.never_hit and (not self.replacements or self.dice.random() < 0.5):
            rank, generation = self.never_hit.pop(self.dice.randrange(len(self.never_hit))), 0
            phase, name, n = self.of_survivor(rank, self.recoveries)
        elif self.replacements:
            rank, generation = self.replacements.pop(self.dice.randrange(len(self.replacements)))
            phase, name, n = self.of_replacement(rank)
        else:
            return None
        action = draw_action(self.dice, name)
        if action in ("kill", "stop"):
            self.note(rank, action == "kill")
        return AtFailpoint(name, n, action, rank, generation, phase)

    def of_survivor(self, rank, recoveries):
        if recoveries and self.dice.random() < 0.3:
            return "recovery", self.dice.choice(OF_A_RECOVERY), self.dice.randint(1, recoveries)
        phase, name, n = self.places.draw(self.dice, rank)
        if name.startswith(OF_A_MEETING):
            return phase, name, n + self.places.total(rank, name) * self.dice.randint(min(1, recoveries), recoveries)
        if name.startswith(OF_A_STATE):
            return phase, name, n
        total = self.places.total(rank, name)
        if n <= self.done * total:  # Else it would come before an earlier fault.
            n = self.dice.randint(min(int(self.done * total) + 1, total), total)
        self.done = max(self.done, n / total)
        return phase, name, n

    def of_replacement(self, rank):
        phase, name, n = self.places.draw(self.dice, rank)
        if not name.startswith(OF_A_MEETING + OF_A_STATE):
            left = max(1, int((1 - self.done) * self.places.total(rank, name)))
            n = min(n, self.dice.randint(1, left))
            self.done += (1 - self.done) * n / left
        return phase, name, n


def draw_instant(dice, places, ranks):
    after = dice.choice(sorted(places.events))
    count = 2 if ranks > 2 and dice.random() < 0.3 else 1
    return AtInstant(draw_end(dice, dice.choice(["SIGKILL", "SIGSEGV"]), "SIGSTOP"),
                     tuple(sorted(dice.sample(range(ranks), count))), after, dice.randint(1, places.events[after]),
                     dice.choice([0, 0.003, 0.02, 0.1]) * dice.random())


def draw_throws(dice, places, ranks):
    return Throws(dice.randrange(ranks), dice.randrange(places.steps))


def draw_scales(dice, ranks):
    """One or two changes of the number of ranks."""
    scales = [Scale(dice.choice([count for count in range(1, 5) if count != ranks]), ranks, 0.1 * dice.random())]
    if dice.random() < 0.5:
        now = scales[0].ranks
        scales.append(Scale(dice.choice([count for count in range(1, 4) if count != now]), ranks + now,
                            0.1 * dice.random()))
    return scales


def draw_second_machine(dice):
    return SecondMachine(dice.choice([0, 0.3, 1.5, 4]) * dice.random(), 0.2 + 3 * dice.random(),
                         dice.choice(["SIGKILL", "SIGTERM", "SIGINT"]))


def draw_of_elastic(dice, places):
    faults = [draw_second_machine(dice) for _ in range(dice.choice([1, 1, 2]))]
    if dice.random() < 0.5:
        rank = dice.randrange(2)
        name, _, n = dice.choice(OF_SECOND_RANK if rank else OF_FIRST_RANK).partition(":")
        faults.append(AtFailpoint(name, int(n), draw_end(dice, "kill", "stop"), rank, rank, "second machine"))
    if dice.random() < 0.3:
        faults.append(draw_instant(dice, places, 2))
    return faults


def draw_of_plain(dice, places, number):
    """One in each generation: all processes of the one before are gone."""
    faults = []
    for generation in range(number):
        rank = dice.choice(list(places.of))
        phase, name, n = places.draw(dice, rank)
        faults.append(AtFailpoint(name, n, draw_end(dice, "kill", "stop"), rank, generation, phase))
    return faults


def draw(case, places):
    """One to four faults, with those that the case has already."""
    dice = random.Random(f"faults {case.seed}")
    if case.ranks == 0:
        return draw_of_elastic(dice, places)
    number = dice.choice([1, 1, 2, 2, 3, 4])
    if case.is_scaled():
        return case.faults + [draw_instant(dice, places, case.ranks)] * (number > 2)
    if case.loop == "plain" and dice.random() < 0.7:
        return draw_of_plain(dice, places, number)
    at_instants = sum(dice.random() < 0.35 for _ in range(number))
    faults = [draw_instant(dice, places, case.ranks) if dice.random() < 0.75 else draw_throws(dice, places, case.ranks)
              for _ in range(at_instants)]
    throws = [fault for fault in faults if isinstance(fault, Throws)]
    faults = [fault for fault in faults if fault not in throws[1:]]  # A process is told of one.
    drawing = Drawing(dice, places, case.ranks, faults)
    return faults + list(filter(None, (drawing.draw() for _ in range(number - len(faults)))))
