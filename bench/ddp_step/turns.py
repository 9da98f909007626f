"""What bench/ddp_step/run.py, bench/step/run.py and bench/fully_shard/run.py share: they time steps of the programs
ddp_step (C++) and pytorch_ddp.py (Python), whose ranks wait for commands, in turns, so that all see the same machine."""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import select
import subprocess
import sys
import tempfile
import time

# Steps of one turn: half a second or so of the slowest exchange.
STEPS = {"toy": 200, "linear": 200, "mlp": 15, "mingpt": 10, "gpt124m": 1, "resnet18": 2,
         "written": 10, "written1mb": 200, "written4mb": 50, "written16mb": 20, "written64mb": 5, "written256mb": 2,
         "written1024mb": 1}


# Exchanges of pytorch_ddp.py.
PYTORCH = ("pytorch", "fsdp2")

# Between machines both programs run at the same time.
MASTER_PORTS = {"native": 29517, "pytorch": 29518}


class Program:
    """The ranks of a job that wait for commands on a named pipe. `launchers`: the commands that start it, one a
    machine."""

    def __init__(self, folder, name, launchers, environment):
        self.pipes = [os.path.join(folder, f"{name}.{end}") for end in ("commands", "answers")]
        for pipe in self.pipes:
            os.mkfifo(pipe)
        self.processes = [subprocess.Popen([*command, *self.pipes], env=environment) for command in launchers]
        # Opened for both directions, so that a program that fails to start leaves nobody waiting.
        self.commands = open(os.open(self.pipes[0], os.O_RDWR), "w", encoding="utf-8")
        self.answers = open(os.open(self.pipes[1], os.O_RDWR | os.O_NONBLOCK), encoding="utf-8")
        os.set_blocking(self.answers.fileno(), True)

    def ask(self, line):
        print(line, file=self.commands, flush=True)
        while not select.select([self.answers], [], [], 0.5)[0]:
            for process in self.processes:
                if process.poll() is not None:
                    sys.exit(f"run.py: the program ended with {process.returncode} at '{line}'")
        return json.loads(self.answers.readline())

    def close(self):
        with contextlib.suppress(OSError):
            print("", file=self.commands, flush=True)
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()


def names(text):
    return text.split(",")


def make_parser(description, models, rounds):
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="where Lockstep was built")
    parser.add_argument("--ranks", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--models", type=names, default=models, help=f"of {', '.join(STEPS)}")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"turns (default {rounds})")
    parser.add_argument("--json", help="write all figures to this file")
    return parser


def check_names(parser, kind, given, known):
    for name in given:
        if name not in known:
            parser.error(f"there is no {kind} '{name}'; choose of {', '.join(known)}")


def start_program(arguments, folder, name, machines=None):
    """Its ranks wait for commands. `name`: native or pytorch. `machines`: a TwoMachines, each of which gets half of the
    ranks."""
    binaries = pathlib.Path(arguments.build).resolve() / "bin"
    commands = {"native": binaries / "ddp_step",
                "pytorch": pathlib.Path(__file__).resolve().parent / "pytorch_ddp.py"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable,
                   "PYTHONWARNINGS": "ignore"}
    lockstep = str(binaries / "lockstep")
    command = [str(commands[name])]
    if machines:
        environment["GLOO_SOCKET_IFNAME"] = "cable"
        launchers = machines.launchers(lockstep, arguments.ranks // 2, command, port=MASTER_PORTS[name])
    else:
        launchers = [[lockstep, "run", "--standalone", f"--nproc-per-node={arguments.ranks}", *command]]
    return Program(folder, name, launchers, environment)


def take_turns(arguments, subjects, machines=None):
    """Yields (model, subject, placement, answer) for each turn. `subjects`: {name: (exchange, optimizer)}."""
    show = sys.stderr.isatty()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        programs = {}
        has_pytorch = any(exchange in PYTORCH for exchange, _ in subjects.values())
        for name in ["native", "pytorch"] if has_pytorch else ["native"]:
            programs[name] = start_program(arguments, folder, name, machines)
            stack.callback(programs[name].close)
        for turn in range(arguments.rounds):
            for model in arguments.models:
                before = programs["native"].ask("distance")["placement"]
                for subject, (exchange, optimizer) in subjects.items():
                    if show:
                        print(f"\r\033[Kturn {turn + 1} of {arguments.rounds}: {model}, {subject}",
                              end="", file=sys.stderr, flush=True)
                    program = programs["pytorch" if exchange in PYTORCH else "native"]
                    answer = program.ask(f"{model} {exchange} {optimizer} {STEPS[model]}")
                    after = programs["native"].ask("distance")["placement"]
                    yield model, subject, before if before == after else "mixed", answer
                    before = after
        if show:
            print("\r\033[K", end="", file=sys.stderr)


def write_json(arguments, benchmark, rows):
    if not arguments.json:
        return
    cpu = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text("utf-8"))
    report = {"benchmark": benchmark, "ranks": arguments.ranks, "rounds": vars(arguments).get("rounds"),
              "cpu": cpu[1] if cpu else platform.machine(), "date": time.strftime("%Y-%m-%d"), "rows": rows}
    pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
