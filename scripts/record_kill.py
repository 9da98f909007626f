#!/usr/bin/env python3
"""Kills a rank of a job while it trains, and draws what the other ranks do: docs/kill.svg.

    scripts/record_kill.py [--binaries=build/release/bin] [--output=docs/kill.svg]

The job is examples/resilient.cpp. It runs twice: undisturbed, and with a kill in the middle. Lanes, times, steps and lines
of text are those of the second run; both runs must end with the same checksum of the parameters.
"""

import argparse
import html
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = 3
STEPS = 6000
KILLED = 1
DEADLINE_S = 300


class Job:
    """A run of the example, with the time of each line and of each process."""

    def __init__(self, binaries, name):
        self.lockstep = str(binaries / "lockstep")
        self.name = name
        self.shown = ["lockstep", "run", "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=5",
                      "resilient", "--steps", str(STEPS)]
        command = [self.lockstep, *self.shown[1:5], f"--rdzv-id={name}", str(binaries / "resilient"), *self.shown[6:]]
        self.begin = time.monotonic()
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []  # (seconds, text)
        self.seen = {}  # (rank, pid): [first, last] in seconds
        self.has_news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def now(self):
        return time.monotonic() - self.begin

    def _read(self):
        for line in self.process.stdout:
            with self.has_news:
                self.lines.append((self.now(), line.rstrip()))
                self.has_news.notify_all()
        with self.has_news:
            self.lines.append((self.now(), None))
            self.has_news.notify_all()

    def wait_for(self, pattern):
        """The first line that matches, while the processes are watched."""
        while True:
            self.look()
            with self.has_news:
                for seconds, text in self.lines:
                    if text is not None and re.search(pattern, text):
                        return seconds, text
                if self.lines and self.lines[-1][1] is None:
                    sys.exit("the job ended:\n" + "\n".join(text for _, text in self.lines if text))
                self.has_news.wait(0.02)
            if self.now() > DEADLINE_S:
                sys.exit(f"no line {pattern!r} after {DEADLINE_S} s")

    def look(self):
        told = subprocess.run([self.lockstep, "ps", self.name, "--json"], capture_output=True, text=True, timeout=30)
        seconds = self.now()
        for job in json.loads(told.stdout) if told.returncode == 0 else []:
            for worker in job.get("workers", []):
                if worker["state"] == "running":
                    self.seen.setdefault((worker["rank"], worker["pid"]), [seconds, seconds])[1] = seconds

    def kill(self, rank):
        pid = max((last, pid) for (of, pid), (_, last) in self.seen.items() if of == rank)[1]
        os.kill(pid, signal.SIGKILL)
        return self.now(), pid


def checksum_of(text):
    return re.search(r"checksum of the parameters (\d+)", text)[1]


class Picture:
    """Lanes of ranks over time, then lines of text."""

    WIDTH = 860
    LEFT, RIGHT = 90, 20
    LANE = 42

    def __init__(self, seconds):
        self.seconds = seconds
        self.parts = []
        self.y = 0

    def x(self, seconds):
        return self.LEFT + (self.WIDTH - self.LEFT - self.RIGHT) * seconds / self.seconds

    def text(self, x, y, text, name="", anchor="start"):
        self.parts.append(f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>')

    def bar(self, first, last, y, name):
        self.parts.append(f'<rect class="{name}" x="{self.x(first):.1f}" y="{y}" rx="3" '
                          f'width="{max(self.x(last) - self.x(first), 2):.1f}" height="26"/>')

    def document(self, height):
        style = """
    text { font-family: system-ui, sans-serif; font-size: 13px; fill: #24292f; }
    .mono { font-family: ui-monospace, monospace; font-size: 12.5px; }
    .light { fill: #d0d7de; } .small { font-size: 11.5px; fill: #57606a; } .in { fill: #ffffff; font-size: 12px; }
    .red { fill: #cf222e; font-weight: 600; } .good { fill: #7ee787; }
    .run { fill: #2da44e; } .join { fill: #bf8700; } .terminal { fill: #161b22; }
    .line { stroke: #d0d7de; } .kill { stroke: #cf222e; stroke-width: 2.5; }"""
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {height}" role="img">\n'
                f"  <title>A rank is killed while it trains; the others keep running</title>\n  <style>{style}\n  </style>\n"
                f'  <rect width="{self.WIDTH}" height="{height}" fill="#ffffff"/>\n  ' + "\n  ".join(self.parts) + "\n</svg>\n")


def draw(job, killed_at, killed_pid, undisturbed):
    resumed_at, resumed = next((seconds, text) for seconds, text in job.lines
                               if seconds > killed_at and text and text.startswith("ranks:"))
    reported = next(text for seconds, text in job.lines if seconds > killed_at and text and "killed by" in text)
    end, result = next((seconds, text) for seconds, text in job.lines if text and "checksum" in text)
    picture = Picture(end)

    top = 44
    picture.text(picture.LEFT, 20, f"{RANKS} ranks train; rank {KILLED} is killed; the others keep their processes and their state")
    for rank in range(RANKS):
        y = top + rank * picture.LANE
        picture.text(16, y + 18, f"rank {rank}")
        for (of, pid), (first, last) in sorted(job.seen.items(), key=lambda item: item[1]):
            if of != rank:
                continue
            if pid == killed_pid:
                picture.bar(0, killed_at, y, "run")
            elif rank == KILLED:
                picture.bar(min(first, resumed_at), resumed_at, y, "join")
                picture.bar(resumed_at, end, y, "run")
            else:
                picture.bar(0, end, y, "run")
            label_at = picture.x(max(first, resumed_at) if rank == KILLED and pid != killed_pid else 0) + 8
            picture.text(label_at, y + 17, f"pid {pid}", "in")
        if rank == KILLED:
            x = picture.x(killed_at)
            picture.parts.append(f'<path class="kill" d="M{x - 6:.1f} {y + 7} l12 12 m0 -12 l-12 12"/>')
    y = top + KILLED * picture.LANE - 4
    picture.text(picture.x(killed_at) + 10, y, f"kill -9 {killed_pid}: {RANKS} ranks train again after {resumed_at - killed_at:.2f} s", "red")
    y = top + RANKS * picture.LANE + 4
    for seconds in range(int(end) + 1):
        x = picture.x(seconds)
        picture.parts.append(f'<path class="line" d="M{x:.1f} {top - 6} V{y}"/>')
        picture.text(x, y + 14, f"{seconds} s", "small", "middle")
    y += 30
    lines = [("light", "$ " + " ".join(job.shown)), ("", reported), ("", resumed), ("", result),
             ("good", "without the kill:".ljust(result.index("checksum")) + f"checksum of the parameters {undisturbed}")]
    picture.parts.append(f'<rect class="terminal" x="10" y="{y}" width="{picture.WIDTH - 20}" height="{len(lines) * 20 + 16}" rx="6"/>')
    for number, (name, text) in enumerate(lines):
        picture.parts.append(f'<text class="mono {name or "light"}" x="24" y="{y + 24 + 20 * number}" xml:space="preserve">'
                             f"{html.escape(text)}</text>")
    # The grid lies behind the bars.
    picture.parts.sort(key=lambda part: 'class="line"' not in part)
    return picture.document(y + len(lines) * 20 + 26)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/kill.svg")
    options = parser.parse_args()
    binaries = options.binaries.resolve()

    calm = Job(binaries, "undisturbed")
    undisturbed = checksum_of(calm.wait_for("checksum")[1])
    calm.process.wait(timeout=DEADLINE_S)

    job = Job(binaries, "killed")
    job.wait_for(rf"step {STEPS * 4 // 10}/")
    killed_at, killed_pid = job.kill(KILLED)
    end = job.wait_for("checksum")[1]
    if job.process.wait(timeout=DEADLINE_S) != 0:
        sys.exit("the job failed")
    if checksum_of(end) != undisturbed:
        sys.exit(f"the checksums differ: {undisturbed} without the kill, with it {end}")
    options.output.write_text(draw(job, killed_at, killed_pid, undisturbed))
    print(f"{options.output}: both runs end with checksum {undisturbed}")


if __name__ == "__main__":
    main()
