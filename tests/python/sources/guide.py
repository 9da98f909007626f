"""Holds docs/distributed-data-parallel.md, docs/fully-shard.md and docs/faults.md to the code: the tests that they name exist, and the
examples of the first are in tests/ranks/ddp/guide_test.cpp.

    guide.py ROOT_OF_THE_REPOSITORY
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1])
GUIDE = (ROOT / "docs/distributed-data-parallel.md").read_text()


def without_spaces(text):
    return "".join(text.split())


class Guide(unittest.TestCase):
    def test_examples_are_compiled(self):
        compiled = without_spaces((ROOT / "tests/ranks/ddp/guide_test.cpp").read_text())
        examples = re.findall(r"```cpp\n(.*?)```", GUIDE, re.DOTALL)
        self.assertGreater(len(examples), 10)
        for example in examples:
            self.assertTrue(without_spaces(example) in compiled, f"not compiled:\n{example}")

    def test_layers_are_written_as_in_the_test(self):
        compiled = without_spaces((ROOT / "tests/ranks/nn/tensor_parallel_test.cpp").read_text())
        guide = (ROOT / "docs/guides/tensor-parallel.md").read_text()
        examples = [text for text in re.findall(r"```cpp\n(.*?)```", guide, re.DOTALL) if "Linear" in text]
        self.assertGreater(len(examples), 0)
        for example in examples:
            self.assertTrue(without_spaces(example) in compiled, f"not compiled:\n{example}")

    def test_named_tests_exist(self):
        sources = [path.read_text() for folder in ("lockstep", "launcher", "diagnose", "tools", "tests/ranks")
                   for path in (ROOT / folder).rglob("*_test.cpp")]
        tests = {f"{suite}.{name}" for source in sources
                 for suite, name in re.findall(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", source, re.MULTILINE)}
        cases = set(re.findall(r"^@case\ndef (\w+)\(", (
            ROOT / "tests/python/parity/ddp_features_pytorch.py").read_text(), re.MULTILINE))
        shown = set()
        for row in re.findall(r"^\|.*\|$", GUIDE, re.MULTILINE):
            shown |= set(re.findall(r"`([^`]+)`", row.split("|")[-2]))
        self.assertEqual(shown - tests - cases, set())
        self.assertEqual(cases - shown - {"passes", "complex", "dtypes", "frozen", "shared"}, set())


class FullyShard(unittest.TestCase):
    """docs/fully-shard.md"""

    def test_examples_are_compiled(self):
        compiled = "".join(without_spaces((ROOT / f"tests/ranks/{name}_test.cpp").read_text())
                           for name in ("fully_shard/fully_shard", "fully_shard/accelerator", "fully_shard/hybrid"))
        examples = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs/fully-shard.md").read_text(), re.DOTALL)
        self.assertGreater(len(examples), 0)
        for example in examples:
            self.assertTrue(without_spaces(example) in compiled, f"not compiled:\n{example}")


class Faults(unittest.TestCase):
    """docs/faults.md"""

    def test_named_tests_exist(self):
        text = (ROOT / "docs/faults.md").read_text()
        folders = ("lockstep", "launcher", "diagnose", "tools", "tests/ranks", "tests/system")
        tests = {f"{suite}.{name}" for folder in folders for path in (ROOT / folder).rglob("*_test.cpp")
                 for suite, name in re.findall(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", path.read_text(), re.MULTILINE)}
        tests |= {f"{suite}.*" for suite, _ in (test.split(".") for test in tests)}
        scripts = [path.read_text() for path in (ROOT / "tests/python").rglob("*.py")]
        tests |= {name for script in scripts for name in re.findall(r"def (test_\w+)", script)}
        named = set(re.findall(r"`(test_\w+|[A-Z]\w+\.(?:\w+|\*))`", text))
        self.assertGreater(len(named), 30)
        self.assertEqual(named - tests, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
