"""The programs of the recovery fuzzer: which loop, how many ranks, with which options; drawn from a seed."""

import dataclasses
import os
import random

import faults as drawn_faults

# How often each is drawn. resilient, plain and server are loops of recovery_worker, whose program the same seed draws
# (drawn_training.h), the others of accelerator_worker.
LOOPS = {"resilient": 4, "accelerator": 6, "trainer": 4, "server": 2, "plain": 2}
# Epochs of accelerator_worker have ten steps.
STEPS_PER_EPOCH = 10
# Enough for the number of ranks to change meanwhile, by what a step takes.
STEPS_OF_SCALED = {("accelerator", "shm"): 3000, ("accelerator", "gloo"): 1000, ("trainer", "shm"): 600,
                   ("trainer", "gloo"): 400}


@dataclasses.dataclass
class Case:
    seed: int
    loop: str
    ranks: int            # 0: machines join and leave
    backend: str
    arguments: list       # of accelerator_worker
    flags: list           # of the launcher
    faults: list
    pace: int = 1         # how many times as long deadlines are
    shards: int = 0       # logical shards of a step: the bits do not depend on the number of ranks
    other_ranks: int = 0  # on which the undisturbed job must end with the same bits; 0: not compared

    def has(self, kind):
        return any(isinstance(fault, kind) for fault in self.faults)

    def is_scaled(self):
        return self.has(drawn_faults.Scale)

    def depends_on_ranks(self):
        """The bits depend on when the number of ranks changes."""
        return self.is_scaled() and not self.shards

    def may_be_preempted(self):
        return any(isinstance(fault, drawn_faults.SecondMachine) and fault.signal != "SIGKILL" for fault in self.faults)

    def is_of_accelerator(self):
        return self.loop in ("accelerator", "trainer")

    def command(self, binaries, folder):
        if self.is_of_accelerator():
            return [os.path.join(binaries, "accelerator_worker"), *self.arguments]
        return [os.path.join(binaries, "recovery_worker"), str(self.seed), str(self.ranks), folder, self.loop]

    def __str__(self):
        program = " ".join([self.loop, *self.arguments, *self.flags])
        said = "; ".join(map(str, self.faults)) or "no fault"
        return f"seed {self.seed}, {program}, {self.ranks or 'any'} ranks over {self.backend}: {said}"


def draw_kind(dice, loop, is_scaled):
    """Of accelerator_worker."""
    kind = ["places"]

    def add(probability, *choices):
        if dice.random() < probability:
            kind.append(dice.choice(choices))

    if loop == "trainer":
        kind.append("trainer")
        add(0.3, "accumulate")
        add(0.3, "uneven")
    else:
        # Batches of an epoch must be alike for two models, and so for two optimizers.
        add(0.7, "accumulate", "manual", "two", "uneven")
        if not is_scaled:
            add(0.5, "tail")
            add(0.4, "save")
    add(0.3, "fp16", "bf16")
    add(0.3, "syncbn")
    add(0.3, "check")
    if "save" in kind or loop == "trainer":
        add(0.3, "async")
        add(0.3, "sharded")
    return "+".join(kind)


def draw_copy(seed, kind, backend):
    """Whether ranks have one copy per machine, and whose optimizers they have; drawn apart, so that seeds keep what they
    drew before."""
    dice = random.Random(f"copy {seed}")
    # Gradients that a program accumulates itself, without no_sync(), are refused.
    if backend == "shm" and "manual" not in kind and dice.random() < 0.4:
        kind += "+onecopy"
    return kind + "+fused" if dice.random() < 0.5 else kind


def draw_shards(seed, case):
    """Logical shards, and another number of ranks to compare with; drawn apart, as copies are. What is refused with them is
    left out."""
    dice = random.Random(f"shards {seed}")
    kind = case.arguments[1].split("+")
    if dice.random() >= 0.35:
        return
    # Each shard has two rows for its batch norm.
    case.shards = dice.choice([1, 2, 3] if "uneven" in kind else [1, 2, 3, 4, 5, 6])
    case.ranks = dice.choice([1, 2, 2, 3, 3, 4]) if not case.is_scaled() else case.ranks
    case.other_ranks = dice.choice([ranks for ranks in (1, 2, 3, 4) if ranks != case.ranks])
    refused = {"accumulate", "manual", "two", "syncbn", "onecopy"}
    case.arguments[1] = "+".join([part for part in kind if part not in refused] + [f"shards{case.shards}"])


def draw_case(seed):
    """Without faults yet, but for a change of the number of ranks."""
    dice = random.Random(f"case {seed}")
    loop = dice.choices(list(LOOPS), list(LOOPS.values()))[0]
    case = Case(seed, loop, dice.choice([2, 2, 3]), dice.choice(["shm", "shm", "gloo"]), [], [], [])
    if loop == "resilient":
        case.ranks = dice.choice([0, 1, 2, 2, 3, 4])
        if case.ranks == 0:
            case.backend = "gloo"
    elif loop in ("server", "plain"):
        case.ranks = dice.choice([2, 3, 4] if loop == "server" else [2, 3])
    else:
        if dice.random() < 0.15:
            case.faults = drawn_faults.draw_scales(dice, case.ranks)
        steps = STEPS_OF_SCALED[loop, case.backend] if case.is_scaled() else STEPS_PER_EPOCH * dice.randint(3, 8)
        kind = draw_copy(seed, draw_kind(dice, loop, case.is_scaled()), case.backend)
        case.arguments = [str(steps), kind, str(dice.choice([0, 0, 4, 10])), dice.choice(["for", "while"])]
        draw_shards(seed, case)
    if loop in ("resilient", "accelerator", "trainer") and case.ranks > 1 and dice.random() < 0.15:
        case.flags = ["--standby=1"]
    return case
