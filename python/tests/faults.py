"""Jobs whose ranks fail in one way each: the others end with one clear line, and nothing is left behind.

usage: faults.py LOCKSTEP   (or faults.py rank FAULT, one rank of such a job)
"""

import os
import signal
import subprocess
import sys
import threading
import time
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


def run_rank(fault):
    import torch
    import torch.distributed as dist

    import lockstep_torch  # noqa: F401

    timeout = timedelta(seconds=2 if "timeout" in fault else 60)
    tensor = torch.ones(1000)
    if fault == "group_of_a_thread":
        # The thread that makes the group ends; the group goes on.
        maker = threading.Thread(target=lambda: dist.init_process_group("lockstep", timeout=timeout))
        maker.start()
        maker.join()
    else:
        dist.init_process_group("lockstep", timeout=timeout)
    rank = dist.get_rank()
    dist.all_reduce(tensor)

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
    elif fault == "interrupt":
        # Ctrl-C while this rank waits: KeyboardInterrupt, long before the timeout.
        if rank == 0:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                dist.all_reduce(tensor)
            except KeyboardInterrupt:
                print("KeyboardInterrupt", flush=True)
                os._exit(0)
        else:
            time.sleep(3)
    elif fault == "signal_handler":
        # A handler runs while the rank waits, which then goes on.
        if rank == 0:
            signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        else:
            time.sleep(1)
        dist.all_reduce(tensor)
        print("done", flush=True)
    elif fault == "progress":
        # A rank that computes sends on: 64 MB reach the peer before the call after it.
        big = torch.ones(16 << 20)
        if rank == 0:
            request = dist.isend(big, 1)
            reduced = dist.all_reduce(tensor, async_op=True)
            future = reduced.get_future().then(lambda _: "completed")
            reply = torch.zeros(1)
            answer = dist.irecv(reply, 1)
            end = time.monotonic() + 30
            while not os.path.exists(os.environ["FLAG"]):  # makes no call until the peer has all
                assert time.monotonic() < end
            assert future.wait() == "completed"
            answer.wait()
            request.wait()
        else:
            dist.recv(big, 0)
            dist.all_reduce(tensor)
            open(os.environ["FLAG"], "w").close()
            dist.send(torch.ones(1), 0)
        dist.barrier()
        print("done", flush=True)
    elif fault == "fork":
        # A forked child that ends in good order takes nothing from its parent.
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(tensor)
            except RuntimeError as error:
                print(f"child: {error}", flush=True)
            dist.destroy_process_group()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        dist.all_reduce(tensor)
        print("done", flush=True)
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
    "exception": [
        "DistBackendError: all_reduce number 1 of group 'default' on rank 0: a peer is gone: rank 1 (pid ",
        "ValueError: this rank's own error",
    ],
    "timeout": ["DistBackendError: all_reduce number 1 of group 'default' on rank 0: not complete within 2000 ms"],
    "timeout_of_monitored_barrier": ["after 1000 ms rank 1 had not come"],
    "mismatch": ["RuntimeError: all_reduce number 1 of group 'default' on rank 0", "on rank 1"],
    "dtype_mismatch": ["Float8_e5m2"],
    "interrupt": ["KeyboardInterrupt"],
    "signal_handler": ["handled", "done"],
    "progress": ["done"],
    "fork": ["done", "this process was forked from rank"],
    "loader_workers": ["done"],
    "group_alive_at_exit": ["done"],
    "aborted": ["DistBackendError: all_reduce number 1 of group 'default' on rank 0", "aborted the group"],
}
# Jobs that the launcher ends with an error.
FAILING = {"killed", "os_exit", "exception"}


def shared_memory():
    return sorted(os.listdir("/dev/shm"))


def run_job(lockstep, fault):
    flag = f"/tmp/lockstep_faults_{os.getpid()}"
    environment = dict(os.environ, FLAG=flag, OMP_NUM_THREADS="1")
    command = [lockstep, "run", "--standalone", "--nproc-per-node=2", sys.executable, HERE, "rank", fault]
    job = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if os.path.exists(flag):
        os.remove(flag)
    output = job.stdout + job.stderr
    for text in EXPECTED[fault]:
        assert text in output, f"{fault}: the output lacks '{text}':\n{output}"
    assert "Fatal Python error" not in output and "terminate called" not in output, f"{fault}:\n{output}"
    assert (job.returncode != 0) == (fault in FAILING), f"{fault}: exit code {job.returncode}:\n{output}"


def main():
    if sys.argv[1] == "rank":
        return run_rank(sys.argv[2])
    before = shared_memory()
    chosen = sys.argv[2:] or EXPECTED
    for fault in chosen:
        run_job(sys.argv[1], fault)
        print(f"{fault}: as expected", flush=True)
    assert shared_memory() == before, f"left in /dev/shm: {shared_memory()}"


if __name__ == "__main__":
    main()
