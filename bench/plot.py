#!/usr/bin/env python3
"""Draws what `lockstep bench all-reduce --json=FILE` wrote: time against size, both logarithmic, one
panel for each placement of the processors.

    bench/plot.py results.json -o all_reduce.svg     # needs: pip install matplotlib
"""
import argparse
import json
import sys


def lines_of(report, placement):
    """{label: [(bytes, us), ...]} and the set of labels that are limits."""
    lines, limits = {}, set()
    for row in report["rows"] + report["limits"]:
        if row["placement"] != placement:
            continue
        is_limit = "limit" in row
        label = row["limit"] if is_limit else row["backend"]
        if not is_limit and row["memory"] == "shared":
            label += " in place"
        if is_limit:
            limits.add(label)
        lines.setdefault(label, []).append((row["bytes"], row["us"]))
    return {label: sorted(points) for label, points in lines.items()}, limits


def draw(report, output):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report["rows"]
    placements = [p for p in ("near", "far", "mixed", "unknown")
                  if any(row["placement"] == p for row in rows)]
    figure, panels = pyplot.subplots(1, len(placements), figsize=(7 * len(placements), 5),
                                     sharey=True, squeeze=False, layout="constrained")
    for panel, placement in zip(panels[0], placements):
        lines, limits = lines_of(report, placement)
        for label, points in lines.items():
            style = {"linestyle": ":", "color": "0.5"} if label in limits else {"marker": "o"}
            panel.plot(*zip(*points), label=label, **style)
            if label in limits:
                panel.annotate(label, points[-1], color="0.4", fontsize=8)
        panel.set(xscale="log", yscale="log", title=f"processors {placement}",
                  xlabel="bytes of the tensor", ylabel="median µs of an all-reduce")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.suptitle(f"{report['ranks']} ranks on {report['cpus']} × {report['cpu_model']}, float32 sum")
    figure.savefig(output)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="what --json=FILE wrote")
    parser.add_argument("-o", "--output", default="all_reduce.svg", help="svg, png or pdf")
    arguments = parser.parse_args()
    try:
        with open(arguments.results, encoding="utf-8") as file:
            report = json.load(file)
        draw(report, arguments.output)
    except (OSError, json.JSONDecodeError, KeyError) as error:
        sys.exit(f"plot.py: {arguments.results} is not what lockstep bench --json wrote: {error!r}")
    except ImportError:
        sys.exit("plot.py: matplotlib is missing; pip install matplotlib")


if __name__ == "__main__":
    main()
