"""What tests need and a machine may lack: they are skipped by its name."""

import unittest


class Missing(Exception):
    """What this machine does not have or allow."""


def enter_for_class(test_class, context):
    """Enters a context that may raise Missing, for as long as the tests of the class run."""
    try:
        entered = context.__enter__()
    except Missing as missing:
        raise unittest.SkipTest(str(missing)) from None
    test_class.addClassCleanup(context.__exit__)
    return entered
