"""Version and dependencies of the wheel, for scikit-build-core: both name the PyTorch that it is built against."""

import importlib.metadata
import pathlib
import re


def _torch_minor():
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


def _version():
    text = pathlib.Path("CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"project\(lockstep VERSION (\S+)", text)[1]


def dynamic_metadata(field, settings=None):
    if field == "version":
        # Wheels of one release for several versions of PyTorch lie beside each other.
        return f"{_version()}+torch{_torch_minor()}"
    assert field == "dependencies", field
    return [f"torch=={_torch_minor()}.*"]
