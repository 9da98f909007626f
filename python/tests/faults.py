"""Jobs whose ranks fail in one way each: the others end with one clear line, and nothing is left behind.

usage: faults.py LOCKSTEP [FAULTS...]   (or faults.py rank FAULTS, one rank of such a job)

FAULTS: one, or several joined by '+' that one job survives one after the other: importing PyTorch takes most of its
time.
"""

import atexit
import glob
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from datetime import timedelta

HERE = os.path.abspath(__file__)


def wait_alone(rank, call):
    """Rank 0 calls and prints the error's type and text."""
    if rank != 0:
        return False
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return True
    raise AssertionError("the call returned")


def wait_for_flag():
    end = time.monotonic() + 30
    while not os.path.exists(os.environ["FLAG"]):
        assert time.monotonic() < end
        time.sleep(0.001)


def set_flag():
    open(os.environ["FLAG"], "w").close()


def run_rank(faults):
    other = os.environ.get("OTHER_PYTHON")
    if other and os.environ["RANK"] == "1" and os.path.realpath(sys.executable) != os.path.realpath(other):
        # -E: it does not see PYTHONPATH, by which the first has lockstep_torch.
        os.execv(other, [other, *(["-E"] if faults == "python_without_package" else []), *sys.argv])
    # Before the package's own, so that these run after it.
    at_exit = []
    atexit.register(lambda: [call() for call in at_exit])

    import torch
    import torch.distributed as dist

    import lockstep_torch  # noqa: F401

    timeout = timedelta(seconds=2 if "timeout" in faults else 60)
    tensor = torch.ones(1000)
    if faults == "group_of_a_thread":
        # The thread that makes the group ends; the group goes on.
        maker = threading.Thread(target=lambda: dist.init_process_group("lockstep", timeout=timeout))
        maker.start()
        maker.join()
    else:
        dist.init_process_group("lockstep", timeout=timeout)
    if dist.get_rank() == 0 and faults in FAILING:
        # The launcher stops this rank when rank 1 has ended, which may be before this rank has printed its error.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.all_reduce(tensor)
    for fault in faults.split("+"):
        os.environ["FLAG"] = os.path.join(os.environ["FLAGS"], fault)
        run_fault(fault, dist.get_rank(), at_exit)


def run_fault(fault, rank, at_exit):
    import torch
    import torch.distributed as dist

    import lockstep_torch

    tensor = torch.ones(1000)
    if fault == "group_of_a_thread":
        for _ in range(100):
            dist.all_reduce(tensor)
        print("done", flush=True)
    elif fault == "killed":
        if not wait_alone(rank, lambda: dist.all_reduce(tensor)):
            os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "os_exit":
        if not wait_alone(rank, lambda: dist.all_reduce(tensor)):
            os._exit(3)
    elif fault == "sys_exit":
        if not wait_alone(rank, lambda: dist.all_reduce(tensor)):
            sys.exit(3)
    elif fault == "exception":
        if not wait_alone(rank, lambda: dist.all_reduce(tensor)):
            raise ValueError("this rank's own error")
    elif fault == "timeout":
        if not wait_alone(rank, lambda: dist.all_reduce(tensor)):
            time.sleep(4)
    elif fault == "timeout_of_monitored_barrier":
        if not wait_alone(rank, lambda: lockstep_torch.monitored_barrier(timeout=timedelta(seconds=1))):
            time.sleep(3)
    elif fault == "mismatch":
        other = torch.ones(1000 if rank == 0 else 7)
        try:
            dist.all_reduce(other)
        except RuntimeError as error:
            assert torch.equal(other, torch.ones_like(other))
            print(f"{type(error).__name__}: {error}", flush=True)
    elif fault == "dtype_mismatch":
        other = torch.ones(8).to(torch.float8_e4m3fn if rank == 0 else torch.float8_e5m2)
        try:
            dist.broadcast(other, src=0)
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    elif fault in ("interrupt", "interrupt_of_sparse"):
        # Ctrl-C while this rank waits: KeyboardInterrupt, long before the timeout.
        if rank == 0:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                dist.all_reduce(tensor if fault == "interrupt" else tensor.to_sparse())
            except KeyboardInterrupt:
                print("KeyboardInterrupt", flush=True)
                os._exit(0)
        else:
            time.sleep(3)
    elif fault == "interrupt_of_async":
        # The exception of a handler that ended a wait is raised each time the call is waited for.
        if rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            for again in ("", " again"):
                try:
                    work.wait()
                except KeyboardInterrupt:
                    print(f"KeyboardInterrupt{again}", flush=True)
            os._exit(0)
        else:
            time.sleep(3)
    elif fault in ("killed_in_backward", "interrupt_in_backward"):
        # The errors of the reducer, which autograd carries, are those of collectives.
        model = lockstep_torch.DistributedDataParallel(torch.nn.Linear(300, 300))
        for _ in range(2):
            model(torch.ones(4, 300)).sum().backward()
        loss = model(torch.ones(4, 300)).sum()
        if fault == "killed_in_backward":
            if rank == 1:
                loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            wait_alone(0, loss.backward)
        elif rank == 0:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                loss.backward()
            except KeyboardInterrupt:
                print("KeyboardInterrupt", flush=True)
                os._exit(0)
        else:
            time.sleep(3)
    elif fault == "interrupt_of_job":
        # Ctrl-C of the launcher, while one rank waits in a collective and the other runs Python.
        if rank == 0:
            set_flag()
            dist.all_reduce(tensor)
        else:
            threading.Event().wait()
    elif fault == "small_dev_shm":
        # Containers have 64 MB there. Memory that ranks share is not of it.
        big = lockstep_torch.allocate_tensor(50 << 20).fill_(1)  # 200 MB
        dist.all_reduce(big)
        assert big.sum() == 2 * big.numel()
        assert not [name for name in os.listdir("/dev/shm") if "torch" not in name], os.listdir("/dev/shm")
        print(f"done with {os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize >> 20} MB", flush=True)
    elif fault in ("two_pythons", "python_without_package"):
        print(f"done in {sys.executable}", flush=True)
    elif fault == "signal_handler":
        # A handler runs while the rank waits, which then goes on.
        if rank == 0:
            signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        else:
            time.sleep(1)
        dist.all_reduce(tensor)
        print("done", flush=True)
    elif fault == "waits_for_one_call":
        # Two threads wait for one message. Ctrl-C ends the wait of the main thread, the other goes on.
        if rank == 0:
            work = dist.irecv(tensor, 1)

            def handler(*_):
                try:
                    work.wait()
                except RuntimeError as error:
                    print(f"{type(error).__name__}: {error}", flush=True)
                    signal.raise_signal(signal.SIGINT)

            signal.signal(signal.SIGUSR1, handler)
            entered = threading.Event()
            waiter = threading.Thread(target=lambda: entered.set() or work.wait())
            sys.setswitchinterval(30)  # It gives up the GIL only to wait.
            waiter.start()
            entered.wait()
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            try:
                work.wait()
            except KeyboardInterrupt:
                print("KeyboardInterrupt", flush=True)
            set_flag()
            waiter.join()
            assert work.is_success() and tensor[0].item() == 7
            print("received", flush=True)
        else:
            wait_for_flag()
            dist.send(torch.full((1000,), 7.0), 0)
        dist.all_reduce(tensor)
    elif fault == "progress":
        # A rank that computes sends on: 64 MB reach the peer before the call after it.
        big = torch.ones(16 << 20)
        if rank == 0:
            request = dist.isend(big, 1)
            reduced = dist.all_reduce(tensor, async_op=True)
            future = reduced.get_future().then(lambda _: "completed")
            reply = torch.zeros(1)
            answer = dist.irecv(reply, 1)
            wait_for_flag()  # makes no call until the peer has all
            assert future.wait() == "completed"
            answer.wait()
            request.wait()
        else:
            dist.recv(big, 0)
            dist.all_reduce(tensor)
            set_flag()
            dist.send(torch.ones(1), 0)
        dist.barrier()
        print("done", flush=True)
    elif fault == "fork":
        # A forked child that ends in good order takes nothing from its parent.
        received = torch.zeros(1)
        work = dist.irecv(received, 1 - rank)
        abort = dist.group.WORLD._get_backend(torch.device("cpu")).abort
        child = os.fork()
        if child == 0:
            for call in (lambda: dist.all_reduce(tensor), work.is_completed, work.wait, work.get_future, abort):
                try:
                    call()
                except RuntimeError as error:
                    assert "this process was forked from rank" in str(error), error
                else:
                    raise AssertionError("the call returned")
            print("child: forked", flush=True)
            dist.destroy_process_group()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        dist.send(torch.ones(1), 1 - rank)
        work.wait()
        assert received.item() == 1
        dist.all_reduce(tensor)
        print("parent: done", flush=True)
    elif fault == "loader_workers":
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        for context in ("fork", "spawn"):
            loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context=context)
            for (samples,) in loader:
                dist.all_reduce(samples)
        print("done", flush=True)
    elif fault == "group_alive_at_exit":
        work = dist.all_reduce(tensor, async_op=True)
        keep.extend([work, dist.new_group(), dist.irecv(torch.zeros(1), 1 - rank)])
        work.wait()
        print("done", flush=True)
        return  # neither waits nor destroys
    elif fault == "calls_without_pause":
        # A future completes though calls that are under way become more all the time.
        if rank == 0:
            future = dist.all_reduce(tensor, async_op=True).get_future()
            set_flag()
            calls = []
            end = time.monotonic() + 30
            while not future.done():
                assert time.monotonic() < end, f"not completed after {len(calls)} calls"
                calls.append(dist.irecv(torch.zeros(1), 1, tag=2))
            dist.send(torch.tensor(len(calls)), 1)
            for call in calls:
                call.wait()
        else:
            wait_for_flag()
            dist.all_reduce(tensor)
            count = torch.tensor(0)
            dist.recv(count, 0)
            for _ in range(count.item()):
                dist.send(torch.zeros(1), 0, tag=2)
        print("completed among calls", flush=True)
    elif fault == "callback_under_way":
        # wait() returns when the callbacks of the work's future have run; they may ask the work.
        if rank == 0:
            entered, returned, seen = threading.Event(), threading.Event(), []

            def callback(_):
                entered.set()
                returned.wait(0.5)
                assert work.is_completed() and work.wait()
                seen.append("run")

            work = dist.all_reduce(tensor, async_op=True)
            future = work.get_future()
            chained = future.then(callback)
            set_flag()
            assert entered.wait(30)
            work.wait()
            seen_in_time = list(seen)
            returned.set()
            assert seen_in_time == ["run"] and future.done()
            assert torch.equal(future.value()[0], tensor)
            chained.wait()
        else:
            wait_for_flag()
            dist.all_reduce(tensor)
        dist.barrier()
        print("done", flush=True)
    elif fault == "future_at_exit":
        # Nobody waits for ever for a future when the program ends.
        future = dist.irecv(torch.zeros(1), 1 - rank).get_future()

        def ask():
            try:
                future.wait()
            except RuntimeError as error:
                print(f"{type(error).__name__}: {error}", flush=True)
            dist.all_reduce(tensor, async_op=True).get_future().wait()
            print("reduced at exit", flush=True)

        at_exit.append(ask)
        return
    elif fault == "callback_blocks_at_exit":
        # Rank 0 ends though a callback waits for a message that rank 1 does not send.
        process = torch.tensor(os.getpid())
        dist.broadcast(process, src=0)
        if rank == 0:
            entered = threading.Event()

            def callback(_):
                entered.set()
                dist.recv(torch.zeros(1), 1, tag=1)

            keep.append(dist.irecv(tensor, 1).get_future().then(callback))
            set_flag()
            assert entered.wait(30)
            return
        wait_for_flag()
        dist.send(tensor, 0)
        end = time.monotonic() + 30
        while os.path.exists(f"/proc/{process.item()}"):
            assert time.monotonic() < end, "rank 0 did not end"
            time.sleep(0.01)
        print("rank 0 ended", flush=True)
        return
    elif fault == "received_after_timeout":
        # A receive that is only polled, by the program and by the thread, has no deadline.
        if rank == 0:
            received = torch.zeros(1)
            request = dist.irecv(received, 1)
            end = time.monotonic() + 30
            while not request.is_completed():
                assert time.monotonic() < end
                time.sleep(0.01)
            assert request.is_success() and received.item() == 1
        else:
            time.sleep(4)
            dist.send(torch.ones(1), 0)
        dist.all_reduce(tensor)
        print("done", flush=True)
    elif fault == "from_any_over_hierarchical":
        # A mistake of the caller, and no failure of the group.
        try:
            dist.recv(tensor)
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        dist.all_reduce(tensor)
        print("done", flush=True)
    elif fault == "aborted":
        if not wait_alone(rank, lambda: dist.all_reduce(tensor)):
            dist.group.WORLD._get_backend(torch.device("cpu")).abort()
            time.sleep(1)
    else:
        raise AssertionError(fault)


keep = []

# What one of the ranks prints, and what the job prints nowhere.
EXPECTED = {
    "group_of_a_thread": ["done"],
    "killed": ["DistBackendError: all_reduce number 1 of group 'default' on rank 0: a peer is gone: rank 1 (pid "],
    "os_exit": ["DistBackendError: all_reduce number 1 of group 'default' on rank 0: a peer is gone: rank 1 (pid "],
    "sys_exit": ["DistBackendError: all_reduce number 1 of group 'default' on rank 0: a peer is gone: rank 1 (pid "],
    "interrupt_of_job": ["KeyboardInterrupt"],
    "small_dev_shm": ["done with 64 MB"],
    "two_pythons": [f"done in {sys.executable}", "/bin/other_python"],
    "python_without_package": ["ModuleNotFoundError: No module named 'lockstep_torch'"],
    "other_torch": ["torch 2.99.1 is installed; pip install 'torch=="],
    "exception": [
        "DistBackendError: all_reduce number 1 of group 'default' on rank 0: a peer is gone: rank 1 (pid ",
        "ValueError: this rank's own error",
    ],
    "timeout": ["DistBackendError: all_reduce number 1 of group 'default' on rank 0: not complete within 2000 ms"],
    "timeout_of_monitored_barrier": ["rank 1 did not join within 1000 ms"],
    "mismatch": ["RuntimeError: all_reduce number 1 of group 'default' on rank 0", "on rank 1"],
    "dtype_mismatch": ["Float8_e5m2"],
    "interrupt": ["KeyboardInterrupt"],
    "interrupt_of_sparse": ["KeyboardInterrupt"],
    "interrupt_of_async": ["KeyboardInterrupt", "KeyboardInterrupt again"],
    "killed_in_backward": ["DistBackendError: ", "a peer is gone: rank 1 (pid "],
    "interrupt_in_backward": ["KeyboardInterrupt"],
    "signal_handler": ["handled", "done"],
    "waits_for_one_call": ["RuntimeError: wait: called by a signal handler", "KeyboardInterrupt", "received"],
    "calls_without_pause": ["completed among calls"],
    "callback_under_way": ["done"],
    "future_at_exit": ["not complete when the program ended", "reduced at exit"],
    "callback_blocks_at_exit": ["rank 0 ended"],
    "received_after_timeout": ["done"],
    "progress": ["done"],
    "fork": ["parent: done", "child: forked"],
    "loader_workers": ["done"],
    "group_alive_at_exit": ["done"],
    "from_any_over_hierarchical": ["RuntimeError: recv: the backend hierarchical has no receive from any rank", "done"],
    "aborted": ["DistBackendError: all_reduce number 1 of group 'default' on rank 0", "aborted the group"],
}
# Jobs that the launcher ends with an error.
FAILING = {"killed", "killed_in_backward", "os_exit", "sys_exit", "exception", "interrupt_of_job", "python_without_package",
           "other_torch"}


def shared_memory():
    return sorted(os.listdir("/dev/shm"))


def make_other_python(folder):
    """Another interpreter of this version, with the packages of this one. Returns its path."""
    venv.create(folder, symlinks=False, with_pip=False)
    [packages] = glob.glob(f"{folder}/lib/python*/site-packages")
    with open(f"{packages}/of_the_first.pth", "w", encoding="utf-8") as file:
        file.write(sysconfig.get_path("purelib"))
    os.rename(f"{folder}/bin/python", f"{folder}/bin/other_python")
    return f"{folder}/bin/other_python"


def make_other_torch(folder):
    """What lockstep_torch reads of a PyTorch before it looks up a symbol. Returns a folder for PYTHONPATH."""
    os.makedirs(f"{folder}/torch/distributed")
    with open(f"{folder}/torch/__init__.py", "w", encoding="utf-8") as file:
        file.write("__version__ = '2.99.1'\n")
    with open(f"{folder}/torch/distributed/__init__.py", "w", encoding="utf-8") as file:
        file.write("class Backend:\n    backend_list = ['lockstep']\n\ndef is_available():\n    return True\n")
    return folder


def run_command(command, environment, fault):
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if fault == "interrupt_of_job":
        while not os.path.exists(os.path.join(environment["FLAGS"], fault)):
            assert job.poll() is None, job.communicate()
            time.sleep(0.01)
        job.send_signal(signal.SIGINT)
    output = job.communicate(timeout=120)[0]
    return job.returncode, output


def run_job(lockstep, fault, folder):
    environment = dict(os.environ, FLAGS=folder, OMP_NUM_THREADS="1")
    if fault.endswith("_over_hierarchical"):
        environment["LOCKSTEP_BACKEND"] = "hierarchical"
    if fault in ("two_pythons", "python_without_package"):
        environment["OTHER_PYTHON"] = make_other_python(f"{folder}/other")
    if fault == "other_torch":
        environment["PYTHONPATH"] = f"{make_other_torch(f'{folder}/other')}:{environment['PYTHONPATH']}"
    command = [lockstep, "run", "--standalone", "--nproc-per-node=2", sys.executable, HERE, "rank", fault]
    if "small_dev_shm" in fault:
        # A mount namespace of its own, as a container has; who is not root makes one with a user namespace.
        mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$@\""
        command = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", mount, "sh", *command]
    returncode, output = run_command(command, environment, fault)
    for text in sum((EXPECTED[one] for one in fault.split("+")), []):
        assert text in output, f"{fault}: the output lacks '{text}':\n{output}"
    assert "Fatal Python error" not in output and "terminate called" not in output, f"{fault}:\n{output}"
    assert (returncode != 0) == (fault in FAILING), f"{fault}: exit code {returncode}:\n{output}"


def main():
    if sys.argv[1] == "rank":
        return run_rank(sys.argv[2])
    before = shared_memory()
    chosen = sys.argv[2:] or EXPECTED
    for fault in chosen:
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            run_job(sys.argv[1], fault, folder)
        print(f"{fault}: as expected", flush=True)
    assert shared_memory() == before, f"left in /dev/shm: {shared_memory()}"


if __name__ == "__main__":
    main()
