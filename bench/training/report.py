#!/usr/bin/env python3
"""Makes a page of what bench/training/run.py measured: one HTML file with its plots that needs
nothing else, and on the standard output the tables in Markdown, after the rows of the README's.

    bench/training/report.py training.json --step=step.json --html=docs/training.html    # needs: pip install jinja2

--step adds whole steps with AdamW, which bench/step/run.py --python measured.
"""
import argparse
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
FRAMEWORKS = {"lockstep": "Lockstep", "pytorch": "PyTorch",
              "pytorch-kept": "PyTorch, memory kept", "accelerate": "Accelerate",
              "fabric": "Fabric"}
TASKS = {"toy": "toy, 10-10-5, SGD", "linear": "Linear(20, 1), SGD", "mlp": "MLP, 8.5 M parameters, SGD",
         "mingpt": "minGPT, 0.9 M parameters, AdamW", "resnet18": "ResNet-18, CIFAR-100, SGD"}
# Of bench/step/run.py.
MODELS = {"mlp": "MLP, 8.5 M parameters", "mingpt": "minGPT, 0.9 M parameters", "resnet18": "ResNet-18, CIFAR-100"}
PEERS = {"pytorch-fused": "PyTorch DDP over Gloo, fused AdamW", "pytorch-foreach": "the same, foreach",
         "libtorch": "LibTorch's AdamW, all-reduce over Gloo"}
PARALLEL = {"ddp": "DDP", "dp": "DP", "none": "no exchange"}
KEY = ("task", "parallel", "precision", "processes", "framework")
# What is drawn and compared: heading, unit, whether more is better.
METRICS = {"samples_per_s": ("Samples a second", "", True),
           "step_ms": ("A step", "ms", False),
           "epoch_s": ("An epoch through the loader", "s", False),
           "start_up_s": ("Start to first complete step", "s", False),
           "peak_mb": ("Peak memory of a process", "MB", False)}


def summarize(runs):
    """{(task, parallel, precision, processes, framework): row}, medians over the rounds."""
    groups = {}
    for run in sorted(runs, key=lambda run: run["round"]):
        key = tuple(run[field] for field in KEY)
        groups.setdefault(key, []).append(run)
    rows = {}
    for key, group in groups.items():
        steps = [run["step_s"]["median"] for run in group]
        median = lambda name: statistics.median(run[name] for run in group)  # noqa: E731, B023
        step = statistics.median(steps)
        rows[key] = {"step_ms": step * 1e3, "samples_per_s": group[0]["batch_size"] / step,
                     "epoch_s": median("epoch_s"), "start_up_s": median("start_up_s"),
                     "peak_mb": median("peak_kb") / 1024, "steps": steps}
    return rows


def ratio_of(rows, key, other):
    """How many times faster `key` steps than `other`: median, least and most of the rounds."""
    if key not in rows or other not in rows:
        return None
    ratios = sorted(theirs / ours for ours, theirs in zip(rows[key]["steps"], rows[other]["steps"]))
    return statistics.median(ratios), ratios[0], ratios[-1]


def name_of(task, parallel, precision, processes):
    words = [TASKS[task], PARALLEL[parallel] + (" + AMP" if precision == "bfloat16" else "")]
    return ", ".join([*words, f"{processes} process" + ("es" if processes > 1 else "")])


def cases_of(rows):
    """What frameworks are compared in: (task, parallel, precision, processes)."""
    return [case for case in dict.fromkeys(key[:4] for key in rows) if case[1] != "none"]


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table_of(rows):
    """A line a case, as cells."""
    lines = []
    for case in cases_of(rows):
        ours = rows.get((*case, "lockstep"))
        theirs = {name: rows.get((*case, name)) for name in FRAMEWORKS if name != "lockstep"}
        pytorch = theirs["pytorch"]
        faster = ratio_of(rows, (*case, "lockstep"), (*case, "pytorch"))
        cells = [name_of(*case), number(ours["step_ms"]) if ours else "–"]
        cells += [number(row["step_ms"]) if row else "–" for row in theirs.values()]
        cells.append(f"{faster[0]:.3g} × ({faster[1]:.3g} to {faster[2]:.3g})" if faster else "–")
        for metric in ("start_up_s", "peak_mb"):
            cells.append(f"{number(ours[metric])} / {number(pytorch[metric])}"
                         if ours and pytorch else "–")
        lines.append(cells)
    return lines


TABLE_HEADING = ["", "Lockstep, ms a step", *list(FRAMEWORKS.values())[1:],
                 "times PyTorch's speed", "start-up, s: Lockstep / PyTorch",
                 "memory, MB: Lockstep / PyTorch"]


def scaling_case(rows, task, precision, framework):
    """(share of twice one process, share of two that do not communicate); None: not measured."""
    one, two = ((task, "ddp", precision, processes, framework) for processes in (1, 2))
    efficiency = (rows[two]["samples_per_s"] / (2 * rows[one]["samples_per_s"])
                  if one in rows and two in rows else None)
    # The processes that do not communicate are Lockstep's.
    alone = (ratio_of(rows, two, (task, "none", precision, 2, "lockstep"))
             if framework == "lockstep" else None)
    return efficiency, alone[0] if alone else None


def scaling_of(rows):
    """Two processes against one, and against two that do not communicate, as cells."""
    lines = []
    for task, parallel, precision, processes, framework in rows:
        efficiency, alone = scaling_case(rows, task, precision, framework)
        if parallel != "ddp" or processes != 2 or efficiency is None:
            continue
        lines.append([name_of(task, "ddp", precision, 2), FRAMEWORKS[framework],
                      f"{efficiency:.0%}", f"{alone:.1%}" if alone else "–"])
    return lines


SCALING_HEADING = ["", "", "of twice one process", "of two that do not communicate"]


def behind_of(rows):
    """Sentences: where another framework is more than two per cent ahead."""
    sentences = []
    for case in cases_of(rows):
        ours = rows.get((*case, "lockstep"))
        for name, label in FRAMEWORKS.items():
            theirs = rows.get((*case, name))
            if name == "lockstep" or ours is None or theirs is None:
                continue
            for metric, (heading, unit, more_is_better) in METRICS.items():
                if not more_is_better and ours[metric] > 1.02 * theirs[metric]:
                    sentences.append(f"{name_of(*case)}: {heading.lower()} takes "
                                     f"{number(ours[metric])} {unit}, "
                                     f"{number(theirs[metric])} {unit} with {label}.")
            task, parallel, precision, processes = case
            if parallel != "ddp" or processes != 2:
                continue
            our_share, their_share = (scaling_case(rows, task, precision, each)[0]
                                      for each in ("lockstep", name))
            if our_share and their_share and our_share < 0.98 * their_share:
                sentences.append(f"{name_of(*case)}: two processes reach {our_share:.0%} of twice one, "
                                 f"{their_share:.0%} with {label}.")
    return sentences


# Of two processes: how many times PyTorch's steps a second, what share of the steps of processes
# that do not communicate, and of PyTorch's memory.
LEAST_SPEEDUP = {"toy": 15, "linear": 15, "mlp": 2, "mingpt": 1, "resnet18": 1}
LEAST_SHARE = {"mingpt": 0.97, "resnet18": 0.97}
MOST_MEMORY = 0.6
# Why a goal was missed, said where it was.
SPEED_REASON = ("the step is LibTorch's own: see the share of two that do not communicate; the rest "
                "is how long PyTorch takes")
SHARE_REASON = "within what the machine varies from run to run: waiting for the slower of two processors"
MEMORY_REASON = "activations, which are LibTorch's and the same in both, are most of it"


def goals_of(rows):
    """What was to be reached and what was, as cells."""
    lines = []

    def add(case, goal, reached, is_met, reason):
        lines.append([name_of(*case), goal, reached, "yes" if is_met else f"no: {reason}"])

    for case in cases_of(rows):
        task, parallel, precision, processes = case
        ours, pytorch = (*case, "lockstep"), (*case, "pytorch")
        if parallel != "ddp" or processes != 2 or ours not in rows or pytorch not in rows:
            continue
        speedup = ratio_of(rows, ours, pytorch)[0]
        goal = LEAST_SPEEDUP[task]
        add(case, f"≥ {goal} × PyTorch's speed", f"{speedup:.3g} ×", speedup >= goal, SPEED_REASON)
        alone = ratio_of(rows, ours, (task, "none", precision, 2, "lockstep"))
        if task in LEAST_SHARE and alone:
            add(case, f"≥ {LEAST_SHARE[task]:.0%} of two that do not communicate", f"{alone[0]:.1%}",
                alone[0] >= LEAST_SHARE[task], SHARE_REASON)
        memory = rows[ours]["peak_mb"] / rows[pytorch]["peak_mb"]
        add(case, f"≤ {MOST_MEMORY:.0%} of PyTorch's memory", f"{memory:.0%}",
            memory <= MOST_MEMORY, MEMORY_REASON)
    return lines


GOALS_HEADING = ["", "goal", "reached", "met"]


STEP_HEADING = ["", "one copy per machine", "replicas", *PEERS.values()]


def ways_of(step, model):
    """{way: row} where processors were placed as in most steps."""
    by_placement = {}
    for row in step["rows"]:
        if row["model"] == model:
            by_placement.setdefault(row["placement"], {})[row["way"]] = row
    needed = {"none", "one-copy", "replicas", *PEERS}
    whole = [rows for rows in by_placement.values() if needed <= set(rows)]
    return max(whole, key=lambda rows: rows["one-copy"]["steps"]) if whole else None


def step_table_of(step):
    """Whole steps with AdamW, as cells; a peer's with how many times longer than one copy's they are."""
    lines = []
    for model, name in MODELS.items():
        ways = ways_of(step, model)
        if not ways:
            continue
        for field, label in (("ms", name), ("after_backward_ms", "of it after backward")):
            one_copy = ways["one-copy"][field]
            if one_copy <= 0:  # Within the spread of forward and backward.
                continue
            cells = [label, number(one_copy), number(ways["replicas"][field])]
            cells += [f"{number(ways[peer][field])} ({ways[peer][field] / one_copy:.2g} ×)" for peer in PEERS]
            lines.append(cells)
    return lines


def step_row_of(step):
    """The row of the README's table with the whole step of the MLP, in Markdown."""
    ways = ways_of(step, "mlp")
    ours, pytorch = ways["one-copy"]["ms"], ways["pytorch-fused"]["ms"]
    return (f"| training step, {MODELS['mlp']}, AdamW, one copy per machine | {number(ours)} ms | "
            f"PyTorch DDP, fused AdamW {number(pytorch)} ms | {pytorch / ours:.2g} × |")


def readme_rows_of(rows):
    """The rows of the README's table of speed, in Markdown, up to the ratio."""
    lines = []
    for case in cases_of(rows):
        ours, pytorch = rows.get((*case, "lockstep")), rows.get((*case, "pytorch"))
        name = name_of(*case).removesuffix(", DDP, 2 processes")
        is_shown = name != name_of(*case) and name.startswith(("MLP", "minGPT", "ResNet"))
        if ours is None or pytorch is None or not is_shown:
            continue
        lines.append(f"| training step, {name} | {number(ours['step_ms'])} ms | "
                     f"PyTorch DDP {number(pytorch['step_ms'])} ms |")
        if name.startswith("minGPT"):
            lines += [f"| minGPT, command to first complete step | {number(ours['start_up_s'])} s | "
                      f"PyTorch DDP {number(pytorch['start_up_s'])} s |",
                      f"| minGPT, peak memory of a process | {number(ours['peak_mb'])} MB | "
                      f"PyTorch DDP {number(pytorch['peak_mb'])} MB |"]
    return lines


def charts_of(rows):
    """[{metric, cases: [{name, bars: [...]}]}] for the template."""
    charts = []
    for metric, (heading, unit, more_is_better) in METRICS.items():
        cases = []
        for case in cases_of(rows):
            values = {name: rows[(*case, name)][metric]
                      for name in FRAMEWORKS if (*case, name) in rows}
            most = max(values.values())
            cases.append({"name": name_of(*case),
                          "bars": [{"framework": name, "label": FRAMEWORKS[name],
                                    "percent": 100 * value / most, "text": f"{number(value)} {unit}"}
                                   for name, value in values.items()]})
        charts.append({"heading": heading, "cases": cases,
                       "better": "more is better" if more_is_better else "less is better"})
    return charts


def markdown_of(heading, lines):
    rule = ["---"] * len(heading)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heading, rule, *lines])


def page_of(report, rows, step):
    import jinja2
    loader = jinja2.FileSystemLoader(HERE)
    template = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True,
                                  lstrip_blocks=True).get_template("report.html.j2")
    rounds = 1 + max(run["round"] for run in report["runs"])
    libtorch = next((run["libtorch"] for run in report["runs"] if "libtorch" in run), "unknown")
    return template.render(report=report, rounds=rounds, libtorch=libtorch,
                           table_heading=TABLE_HEADING,
                           table=table_of(rows), scaling_heading=SCALING_HEADING,
                           scaling=scaling_of(rows), goals_heading=GOALS_HEADING,
                           goals=goals_of(rows), behind=behind_of(rows), charts=charts_of(rows), step=step,
                           step_heading=STEP_HEADING, step_table=step_table_of(step) if step else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="what run.py --json=FILE wrote")
    parser.add_argument("--step", help="what bench/step/run.py --python --json=FILE wrote")
    parser.add_argument("--html", help="the page to write")
    arguments = parser.parse_args()
    try:
        report = json.loads(pathlib.Path(arguments.results).read_text(encoding="utf-8"))
        rows = summarize(report["runs"])
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"report.py: {arguments.results} is not what run.py --json wrote: {error!r}")
    step = json.loads(pathlib.Path(arguments.step).read_text(encoding="utf-8")) if arguments.step else None
    print(*readme_rows_of(rows), *([step_row_of(step)] if step else []), sep="\n", end="\n\n")
    print(markdown_of(TABLE_HEADING, table_of(rows)), end="\n\n")
    print(markdown_of(SCALING_HEADING, scaling_of(rows)))
    if arguments.html:
        pathlib.Path(arguments.html).write_text(page_of(report, rows, step), encoding="utf-8")


if __name__ == "__main__":
    main()
