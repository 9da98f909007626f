"""Which sanitizer a program was built with."""

import pathlib


def is_sanitized(program):
    """By the address or the thread sanitizer: it takes more memory, and handles crashes itself."""
    code = pathlib.Path(program).read_bytes()
    return b"__asan_init" in code or b"__tsan_init" in code
