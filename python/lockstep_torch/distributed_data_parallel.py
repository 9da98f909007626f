"""DistributedDataParallel on the reducer of Lockstep's C++ library."""

import contextlib
import dataclasses
import operator

import torch
import torch.distributed as dist

from . import _C


def tensors_in(outputs):
    """The tensors that a module's outputs hold, in containers and dataclasses."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from tensors_in(list(outputs.values()))
    elif isinstance(outputs, (list, tuple)):
        for item in outputs:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(outputs):
        yield from tensors_in([getattr(outputs, field.name) for field in dataclasses.fields(outputs)])


def lockstep_backend(group):
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise RuntimeError(
            "DistributedDataParallel: no default process group; call torch.distributed.init_process_group('lockstep')"
        )
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not isinstance(backend, _C.Backend):
        raise TypeError(
            f"DistributedDataParallel: the group's backend for CPU tensors is {backend.name()!r}, not 'lockstep'; call "
            "init_process_group('lockstep') or new_group(backend='lockstep'), or use torch.nn.parallel's "
            "DistributedDataParallel"
        )
    return backend


def check_tensors(module, ignored):
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name in ignored:
            continue
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise RuntimeError(
                f"DistributedDataParallel: {name!r} of a lazy module has no shape yet; run the module once before wrapping"
            )
        if hasattr(tensor, "__tensor_flatten__"):
            raise RuntimeError(
                f"DistributedDataParallel: {name!r} is a {type(tensor).__name__}, whose memory is other tensors'; use "
                "torch.nn.parallel's DistributedDataParallel"
            )
        if tensor.device.type != "cpu":
            raise RuntimeError(
                f"DistributedDataParallel: {name!r} is on {tensor.device}; lockstep_torch exchanges CPU tensors"
            )


class DistributedDataParallel(torch.nn.Module):
    """torch.nn.parallel.DistributedDataParallel for CPU modules, with gradients that autograd writes to shared memory.

        model = lockstep_torch.DistributedDataParallel(model)

    Averages gradients over all ranks of the group while backward() runs. Options have the names, and where not said
    otherwise the defaults, of torch.nn.parallel's class. The group's backend must be `lockstep`. All ranks must give
    the same module and options. Construction, forward and backward are collective.

    gradient_as_bucket_view: True by default: .grad may be a view of memory that the next backward() writes to.
    exchange_dtype: torch.float16 or torch.bfloat16; gradients of float32 parameters travel in it.
    gradient_norm: compute the L2 norm of all averaged gradients in the exchange, for gradient_norm().
    check_replicas_every: after this many exchanges compare the bits of parameters and buffers of all ranks; 0: never.
    parameters_and_buffers_to_ignore: names of what is neither compared nor exchanged.

    Not supported: comm hooks, join(), pickling and deepcopy (use `.module`). Parameters that are replaced after
    construction are an error in the next forward.
    Threads: the thread that calls forward and backward.
    Errors: RuntimeError for mistakes of the caller, torch.distributed.DistBackendError for timeouts and lost ranks.
    After an error in backward() build the wrapper anew.
    """

    def __init__(
        self,
        module,
        *,
        process_group=None,
        bucket_cap_mb=None,
        bucket_cap_mb_list=None,
        broadcast_buffers=True,
        init_sync=True,
        find_unused_parameters=False,
        static_graph=False,
        gradient_as_bucket_view=True,
        exchange_dtype=None,
        gradient_norm=False,
        check_replicas_every=0,
        parameters_and_buffers_to_ignore=(),
    ):
        super().__init__()
        check_tensors(module, parameters_and_buffers_to_ignore)
        self.module = module
        self.process_group = dist.group.WORLD if process_group is None else process_group
        self._replica = _C.Replica(
            lockstep_backend(process_group),
            list(module.named_parameters()),
            list(module.named_buffers()),
            bucket_cap_mb=bucket_cap_mb,
            bucket_cap_mb_list=list(bucket_cap_mb_list or ()),
            broadcast_buffers=broadcast_buffers,
            init_sync=init_sync,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            gradient_as_bucket_view=gradient_as_bucket_view,
            exchange_dtype=None if exchange_dtype is None else str(exchange_dtype),
            gradient_norm=gradient_norm,
            check_replicas_every=check_replicas_every,
            parameters_and_buffers_to_ignore=list(parameters_and_buffers_to_ignore),
        )
        self._finds_unused_parameters = find_unused_parameters
        self._wrapped = list(module.parameters())
        self._buffers_shown = [tensor for _, tensor in module.named_buffers()]

    def forward(self, *args, **kwargs):
        self._check_parameters()
        self._show_buffers()
        self._replica.before_forward(self.module.training)
        outputs = self.module(*args, **kwargs)
        self._show_buffers()
        tensors = list(tensors_in(outputs))
        if self._finds_unused_parameters:
            self._replica.add_outputs(tensors)
        for tensor in tensors:
            if tensor.grad_fn is not None:  # the graph keeps the wrapper until its backward pass has ended
                tensor.grad_fn.metadata["lockstep_torch"] = self
        self._replica.after_forward()
        return outputs

    def _show_buffers(self):
        """Modules may replace buffers, also in forward."""
        now = list(self.module.named_buffers())
        tensors = [tensor for _, tensor in now]
        if len(tensors) != len(self._buffers_shown) or not all(map(operator.is_, tensors, self._buffers_shown)):
            self._replica.set_buffers(now)
            self._buffers_shown = tensors

    def _check_parameters(self):
        now = dict(self.module.named_parameters())
        if len(now) == len(self._wrapped) and all(map(operator.is_, now.values(), self._wrapped)):
            return
        known = {id(parameter) for parameter in self._wrapped}
        new = [name for name, parameter in now.items() if id(parameter) not in known]
        raise RuntimeError(
            f"DistributedDataParallel: parameters were added, replaced or removed after construction: {new or 'removed'}; "
            "wrap the module again"
        )

    @contextlib.contextmanager
    def no_sync(self):
        """While it is open, backward() adds to this rank's own gradients; the next backward() exchanges the sum."""
        self._replica.begin_no_sync()
        try:
            yield
        finally:
            self._replica.end_no_sync()

    def backward(self, loss, weight=1.0, retain_graph=False):
        """loss.backward() for a loss that is the mean of `weight` samples or tokens.

        Gradients become the weighted mean over all ranks and all backward passes of the step, for ranks with uneven
        batches. All ranks must make all passes of a step this way.
        """
        self._replica.backward(loss, weight, retain_graph)

    def gradient_norm(self):
        """L2 norm of the averaged gradients; the same bits on every rank. Needs the option gradient_norm."""
        return self._replica.gradient_norm()

    def check_replicas_agree(self):
        """Compares parameters and buffers of all ranks bit by bit. Collective. Raises RuntimeError with the first name."""
        self._replica.check_replicas_agree()

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
        self._replica.forget_passes()

    def __getstate__(self):
        raise TypeError("DistributedDataParallel cannot be pickled or copied; use its `.module` or state_dict()")
