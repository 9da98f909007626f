"""What is done to the processes of a job, drawn from a seed."""

import dataclasses
import random

# What a process passes many times in a run; everything else it passes once or twice in a generation.
OFTEN = ("step.", "collective.", "file.write", "memory.part")
# The launcher's own, and those of lockstep data: a job without its launcher has ended.
OF_NO_RANK = ("launch.", "directory.")
# What only a process passes that has been in a generation before, or joins one that has a state.
OF_A_RECOVERY = ("recover.begin", "recover.left", "recover.said", "recover.placed", "recover.send", "recover.described",
                 "recover.receive", "recover.received", "recover.taken")
# Of rank 0, where programs save.
OF_SAVING = ("file.", "save.", "memory.")
CALLS_THAT_FAIL = ("file.create", "file.sync", "file.rename", "file.sync_directory", "save.delete")


@dataclasses.dataclass(frozen=True)
class AtFailpoint:
    """In the process of a rank that passes `name` for the n-th time, of those started in `generation`."""
    name: str
    n: int
    action: str
    rank: int
    generation: int

    def __str__(self):
        return f"{self.name}:{self.n}:{self.action}:{self.rank}:{self.generation}"


@dataclasses.dataclass(frozen=True)
class AtInstant:
    """A signal to the process of a rank, `after_s` after the event `after` ("starts" or "begins") was seen `n` times."""
    signal: str
    rank: int
    after: str
    n: int
    after_s: float

    def __str__(self):
        return f"{self.signal} to rank {self.rank} {self.after_s:.3f} s after '{self.after}' was seen {self.n} times"


@dataclasses.dataclass(frozen=True)
class SecondMachine:
    """A second launcher joins the job, and leaves it by a signal `for_s` later where the job still runs."""
    after_s: float
    for_s: float
    signal: str

    def __str__(self):
        return f"a second machine joins after {self.after_s:.2f} s and gets {self.signal} {self.for_s:.2f} s later"


def draw_end(dice, killed, stopped):
    return killed if dice.random() < 0.85 else stopped


def draw_failpoint(dice, names, ranks, number):
    """The number-th fault of a job."""
    names = [name for name in names if not name.startswith(OF_NO_RANK)]
    if number == 0:
        names = [name for name in names if not name.startswith(OF_A_RECOVERY)]
    name = dice.choice(names)
    n = dice.randint(1, 40) if name.startswith(OFTEN) else dice.randint(1, 1 + number)
    if name in CALLS_THAT_FAIL and dice.random() < 0.3:
        action = "eio"
    elif name == "file.write" and dice.random() < 0.3:
        action = dice.choice(["eio", "short"])
    else:
        action = draw_end(dice, "kill", "stop")
    rank = 0 if name.startswith(OF_SAVING) else dice.randrange(ranks)
    return AtFailpoint(name, n, action, rank, dice.randint(0, number))


def draw_instant(dice, ranks, number):
    return AtInstant(signal=draw_end(dice, "SIGKILL", "SIGSTOP"), rank=dice.randrange(ranks),
                     after=dice.choice(["starts", "begins"]), n=dice.randint(1, ranks * (1 + number)),
                     after_s=dice.choice([0, 0.003, 0.02, 0.1]) * dice.random())


def draw_second_machine(dice):
    return SecondMachine(dice.choice([0, 0.3, 1.5]) * dice.random(), 0.2 + 3 * dice.random(),
                         dice.choice(["SIGKILL", "SIGTERM", "SIGINT"]))


def draw(seed, names, ranks):
    """One to four faults; later ones often hit processes that were started after earlier ones.
    ranks: 0 for a job whose number of ranks changes."""
    dice = random.Random(f"faults {seed}")
    if ranks == 0:
        faults = [draw_second_machine(dice)]
        if dice.random() < 0.5:
            faults.append(draw_failpoint(dice, names, 2, 1))
        return faults
    faults = []
    for number in range(dice.choice([1, 1, 2, 2, 3, 4])):
        if dice.random() < 0.7:
            faults.append(draw_failpoint(dice, names, ranks, number))
        else:
            faults.append(draw_instant(dice, ranks, number))
    return faults
