"""What PyTorch's entry points call: `lockstep` becomes known to torch.distributed without an import.

`import torch` of any program runs this, so it loads nothing else; see lockstep_torch.
"""


def _make_backend(options, backend_options):
    import lockstep_torch

    return lockstep_torch._make_backend(options, backend_options)


def register():
    import torch.distributed as dist

    if dist.is_available() and "lockstep" not in dist.Backend.backend_list:
        dist.Backend.register_backend("lockstep", _make_backend, extended_api=True, devices=["cpu"])
