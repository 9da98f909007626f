"""Which cases of a test run: all of them, or those that CI has time for."""

import os

ALL_CASES = bool(os.environ.get("ALL_CASES"))


def some(cases, every):
    """All cases under scripts/test.sh --all, which sets ALL_CASES; else the first of each `every`."""
    cases = list(cases)
    return cases if ALL_CASES else cases[::every]


def full(case):
    """A case that only scripts/test.sh --all runs."""
    return case if ALL_CASES else None
