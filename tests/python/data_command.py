"""Runs `lockstep data` with command lines that are right and wrong.

usage: data_command.py <lockstep program>
"""

import json
import os
import subprocess
import sys
import unittest

from data_files import DataTestCase


class DataCommand(DataTestCase):
    def run_data(self, *arguments):
        return subprocess.run(
            [self.lockstep, "data", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
            env=self.environment(),
        )

    def test_lists_what_there_is_also_as_recipes(self):
        text = self.run_data("list").stdout
        listed = json.loads(self.run_data("list", "--json").stdout)
        self.assertEqual([one["name"] for one in listed], ["photos32", "shakespeare", "cifar100"])
        for one in listed:
            self.assertIn(one["name"], text)

    def test_explains_itself(self):
        for arguments in (["--help"], ["get", "--help"], ["help"]):
            result = self.run_data(*arguments)
            self.assertEqual(result.returncode, 0)
            self.assertIn("lockstep data get photos32", result.stdout)

    def test_wrong_command_lines_are_said_in_one_line(self):
        for arguments, message in (
            (["get"], "which one?"),
            (["get", "fotos32"], "did you mean photos32?"),
            (["get", "photos32", "--to=."], "name the folder that is to be made"),
            (["get", "photos32", "--to=/"], "name the folder that is to be made"),
            (["get", "photos32", "--timeout=1.5"], "give whole seconds"),
            (["get", "photos32", "--to=x", "--index-url=ftp://x"], "is of kind 'ftp'"),
            (["get", "--recipe=none.json"], "none.json"),
        ):
            result = self.run_data(*arguments)
            self.assertEqual(result.returncode, 1 if message == "none.json" else 2, arguments)
            self.assertIn(message, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1)

    def test_one_of_several_recipes_is_chosen_and_goes_to_data_by_its_name(self):
        recipes = [{**self.one_file(), "name": name} for name in ("other", "mine")]
        file = self.folder / "recipes.json"
        file.write_text(json.dumps(recipes))
        result = self.run_data("get", "mine", f"--recipe={file}")
        self.assertEqual(result.returncode, 0, result.stderr)
        made = json.loads((self.folder / "data" / "mine" / "recipe.json").read_text())
        self.assertEqual(made["name"], "mine")


if __name__ == "__main__":
    DataTestCase.lockstep = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
