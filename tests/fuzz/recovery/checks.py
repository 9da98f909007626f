"""What must hold of a job, whatever was done to its processes."""

import collections
import re

from recovery_job import JOB_S

# The job as a whole: longer than any of its deadlines, the launcher's verdict on who hangs, and a busy machine.
SILENCE_S = 30


def memory_every(outcome):
    """Of recovery_worker: steps between copies, and whether it evaluates."""
    drawn = next(text for _, text in outcome.lines if text.startswith("starts: "))
    return int(re.search(r"in memory every (\d+)", drawn)[1]), "evaluated every" in drawn


def is_lost_before_a_copy(outcome):
    lost = re.search(r"the state after (\d+) steps or more is lost", outcome.errors)
    return outcome.code == 1 and lost is not None and int(lost[1]) <= memory_every(outcome)[0]


def hashes_of(case, outcome):
    """{step: its hashes}. With a number of ranks that changes, without the last step of each process that was ended:
    the others may have made it again in another number."""
    last = {} if not case.depends_on_ranks() else {
        pid: text for pid, text in outcome.lines if text.startswith(("step ", "ends with "))}
    found = {}
    for pid, text in outcome.lines:
        if text.startswith("step ") and last.get(pid) != text:
            _, step, _, bits = text.split()
            found.setdefault(int(step), set()).add(bits)
    return found


def problem_of_steps(case, outcome, undisturbed):
    """Each step was made, with the bits of the undisturbed job's."""
    found, expected = hashes_of(case, outcome), hashes_of(case, undisturbed)
    # Of a process that is killed the last lines may be lost with it.
    if case.ranks and (missing := expected.keys() - found.keys()) and len(missing) > len(case.faults):
        return f"steps {sorted(missing)} were made by nobody"
    for step, bits in sorted(found.items()):
        if len(bits) > 1 or not (case.depends_on_ranks() or bits <= expected.get(step, set())):
            return f"step {step} has the bits {bits} instead of {expected.get(step)}"
    return ""


def problem_of_order(case, outcome):
    """No process makes a step again that it has made. Lines of several processes may be seen in another order than
    they were written in, those of one are not."""
    allowed = 0
    if case.loop == "server":  # They say a step before they make it, and go back with their servers.
        return ""
    if case.loop == "resilient":
        every, evaluates = memory_every(outcome)
        # A rank that fails after the update of a step has no whole state, and the last copy may be all there is.
        allowed = every if evaluates else 0
    made = {}
    for pid, text in outcome.lines:
        begins = text.startswith("rank ")
        if not begins and not text.startswith("step "):
            continue
        step = int(text.split()[-1 if begins else 1])
        if pid in made and step < made[pid] + 1 - allowed:
            return f"process {pid} made step {made[pid]} and goes on from step {step}"
        if not begins:
            made[pid] = step
    return ""


def has_gone_back(outcome):
    """No process had the state any more, as all were lost at once or had reached the end, and others went on from a
    copy or a snapshot."""
    last = {pid: at for at, (pid, text) in enumerate(outcome.lines) if text.startswith(("step ", "ends with "))}
    made = set()
    for at, (pid, text) in enumerate(outcome.lines):
        if text.startswith("step "):
            made.add(pid)
        elif text.startswith("starts") and made and all(last[one] < at for one in made):
            return True
    return False


def printed_by(outcome):
    return [text for _, text in outcome.lines if text.startswith(("evaluated ", "epoch "))]


def problem_of_lines(case, outcome, undisturbed):
    """Evaluations, and lines that the job prints once."""
    if wrong := [text for _, text in outcome.lines if text.startswith("wrong ") or text == "an epoch too many"]:
        return wrong[0]
    if has_gone_back(outcome):
        return ""
    for what, found, expected in (("lines", printed_by(outcome), set(printed_by(undisturbed))),
                                  ("rows of metrics", outcome.metrics, set(undisturbed.metrics))):
        if len(found) != len(set(found)):
            return f"{what} are there twice: {[one for one, count in collections.Counter(found).items() if count > 1]}"
        if more := set(found) - expected:
            return f"{what} that the undisturbed job has not: {more}"
        # What rank 0 was about to print is lost with it; another writes a row.
        if len(expected) - len(found) > (len(case.faults) if what == "lines" else 0):
            return f"{what} are lost: {expected - set(found)}"
    return ""


def problem_of(case, outcome, undisturbed):
    """Nothing where all holds."""
    if outcome.is_stuck:
        return f"not over after {JOB_S * case.pace} s"
    if outcome.left:
        return f"left behind: {outcome.left}"
    if case.loop == "resilient" and is_lost_before_a_copy(outcome):
        return ""
    if outcome.code != 0:
        return f"exit code {outcome.code}"
    if len(outcome.ends()) != 1 or (not case.depends_on_ranks() and outcome.ends() != undisturbed.ends()):
        return f"other bits: {outcome.ends()} instead of {undisturbed.ends()}"
    if outcome.silence_s > SILENCE_S * case.pace:
        return f"nothing was said for {outcome.silence_s:.0f} s"
    if outcome.audit:
        return f"a sample was not trained once:\n{outcome.audit}"
    return (problem_of_steps(case, outcome, undisturbed) or problem_of_order(case, outcome)
            or problem_of_lines(case, outcome, undisturbed))
