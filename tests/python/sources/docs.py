"""Holds the documents to the repository: file names and words; and the recipes of packages.

    docs.py ROOT_OF_THE_REPOSITORY
"""

import itertools
import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1])
DOCS = ROOT / "docs"
# Pages that follow the code from file to file.
MAPS = ("architecture.md", "how-a-job-starts.md", "how-a-step-goes.md", "how-a-job-recovers.md", "supervision.md",
        "where-things-go.md")


SOURCES = ("cmake", "diagnose", "docs", "examples", "launcher", "lockstep", "models", "packaging", "python", "scripts", "tests",
           "tools", "bench")


def paths():
    """Of all files and folders, each with a slash before it."""
    found = []
    for folder in SOURCES:
        found.append(f"/{folder}")
        found += [f"/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*")]
    return found


class FileNames(unittest.TestCase):
    def test_they_exist(self):
        """In full, or without the folder that the text speaks of."""
        ends = {path[place:] for path in paths() for place in range(len(path)) if path[place] == "/"}
        named = 0
        for page in MAPS:
            text = (DOCS / page).read_text()
            for name in re.findall(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:cpp|h|py|cmake|md|sh)))`", text):
                named += 1
                with self.subTest(page=page, name=name):
                    self.assertTrue("/" + name.rstrip("/") in ends, f"{page} names {name}, which is not there")
        self.assertGreater(named, 150)

    def test_each_map_is_short(self):
        for page, most in (("architecture.md", 200), ("how-a-job-starts.md", 60), ("how-a-step-goes.md", 60),
                           ("how-a-job-recovers.md", 60)):
            self.assertLessEqual(len((DOCS / page).read_text().splitlines()), most, page)


class Step(unittest.TestCase):
    def test_a_gradient_passes_few_files(self):
        """From backward() to .grad: those that the tables name, to the one that sets it."""
        text = (DOCS / "how-a-step-goes.md").read_text()
        walk = text[text.index("**2. Backward"):text.index("| `ddp/exchange/set_gradient.h`")]
        files = set(re.findall(r"`([\w/]+/\w*)(?:\.h|\.cpp)?`", walk)) | {"ddp/exchange/set_gradient"}
        self.assertEqual(int(re.search(r"a gradient passes (\d+)", text)[1]), len(files), sorted(files))
        self.assertLessEqual(len(files), 16)


class Environment(unittest.TestCase):
    def test_the_page_has_every_variable(self):
        header = (ROOT / "lockstep/base/internal/env.h").read_text()
        read = set(re.findall(r'\bk\w+\{\s*"([A-Z][A-Z_]*)",', header))
        told = set(re.findall(r"`([A-Z][A-Z_]*)`", "".join(
            line.split("|")[1] for line in (DOCS / "environment.md").read_text().splitlines() if line.startswith("| `"))))
        self.assertGreater(len(read), 50)
        self.assertEqual(told, read)


class Packaging(unittest.TestCase):
    def test_recipes_have_the_version_of_the_project(self):
        version = re.search(r"^project\(lockstep VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        port = json.loads((ROOT / "packaging/vcpkg/ports/lockstep/vcpkg.json").read_text())
        self.assertEqual(port["version"], version)
        recipe = (ROOT / "packaging/conda/recipe.yaml").read_text()
        self.assertEqual(re.search(r'^  version: "(.*)"', recipe, re.MULTILINE)[1], version)


class Translations(unittest.TestCase):
    """docs/guides/NAME.zh.md is NAME.md in Chinese."""

    def setUp(self):
        self.guides = sorted(path for path in (DOCS / "guides").glob("*.md") if not path.match("*.zh.md"))
        self.assertGreater(len(self.guides), 10)

    def test_each_guide_has_one(self):
        self.assertEqual({chinese_of(guide).name for guide in self.guides},
                         {path.name for path in (DOCS / "guides").glob("*.zh.md")})

    def test_code_blocks_are_the_same(self):
        for guide in self.guides:
            # The overviews differ: the Chinese one is also an introduction.
            if guide.name == "README.md":
                continue
            with self.subTest(guide.name):
                pairs = itertools.zip_longest(code_blocks_of(guide), code_blocks_of(chinese_of(guide)))
                for number, (ours, theirs) in enumerate(pairs, 1):
                    self.assertEqual(ours, theirs, f"{chinese_of(guide).name} has another code block {number}")

    def test_they_link_to_each_other_below_the_title(self):
        for guide in self.guides:
            with self.subTest(guide.name):
                self.assertEqual(guide.read_text().splitlines()[2], f"[中文]({chinese_of(guide).name})")
                self.assertIn(f"[English]({guide.name})", chinese_of(guide).read_text().splitlines()[2])


class Ladder(unittest.TestCase):
    def test_next_is_the_step_that_follows(self):
        for overview, word in (("README.md", "Next:"), ("README.zh.md", "下一步：")):
            table = re.findall(r"^\| \[[^]]*\]\(([\w.-]+)\) \|", (DOCS / "guides" / overview).read_text(), re.MULTILINE)
            self.assertGreater(len(table), 10)
            for guide, following in itertools.pairwise(table):
                with self.subTest(guide):
                    linked = re.search(rf"{word} ?\[[^]]*\]\(([\w.-]+)\)", (DOCS / "guides" / guide).read_text())
                    if linked:
                        self.assertEqual(linked[1], following)


def chinese_of(guide):
    return guide.with_suffix(".zh.md")


def code_blocks_of(page):
    """With the fences: their language counts too."""
    return re.findall(r"^ *```.*?^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)


class Words(unittest.TestCase):
    """The words of language_terms.txt."""

    def test_texts_use_the_terms_of_the_field(self):
        terms = [line.split("\t") for line in lines_of(pathlib.Path(__file__).parent / "language_terms.txt")]
        for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md")),
                     *(header for folder in SOURCES for header in sorted((ROOT / folder).rglob("*.h")))]:
            self.check(path, prose_of(path), terms)
        # Errors, log lines and --help.
        for folder in ("diagnose", "examples", "launcher", "lockstep", "models", "python", "tools"):
            for path in sorted((ROOT / folder).rglob("*.cpp")):
                if not path.stem.endswith("_test"):
                    self.check(path, "\n".join(texts_in(path)), terms)

    def check(self, path, text, terms):
        hits = [(match[0], say) for pattern, say in terms for match in re.finditer(pattern, text, re.IGNORECASE)]
        with self.subTest(str(path.relative_to(ROOT))):
            more = "\n  ".join(f"'{' '.join(word.split())}': {say}" for word, say in hits)
            self.assertEqual(hits, [], f"use the field's terms:\n  {more}")


def texts_in(path):
    """The string literals of a source file, adjacent ones as one."""
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'"\s*\n\s*"', "", path.read_text()))


def lines_of(path):
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def prose_of(path):
    """Without code: of a header the comments."""
    text = path.read_text()
    if path.suffix == ".h":
        text = "\n".join(re.findall(r"//+<? ?(.*)", text))
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return " ".join(re.sub(r"`[^`]*`", "CODE", text).split())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
