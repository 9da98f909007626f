#!/usr/bin/env python3
"""examples/data/get.py, with archives that are made up, from mirrors that may misbehave."""
import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from example_data_run import SCRIPT, DataTestCase, data_set, load_script, png, source, tar_gz_of, zip_of

RECORD_BYTES = 2 + 3 * 32 * 32
CIFAR_FILES = {"cifar-100-binary/train.bin": bytes(range(251)) * 2000, "cifar-100-binary/test.bin": b"test",
               "cifar-100-binary/fine_label_names.txt": b"apple\n"}


class ExampleData(DataTestCase):
    def setUp(self):
        super().setUp()
        self.printed, self.errors = io.StringIO(), io.StringIO()
        for redirected in (contextlib.redirect_stdout(self.printed), contextlib.redirect_stderr(self.errors)):
            redirected.__enter__()
            self.addCleanup(redirected.__exit__, None, None, None)
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))

    def offer_cifar(self):
        self.offer("files", "cifar.tar.gz", tar_gz_of(CIFAR_FILES), CIFAR_FILES)

    def check_whole(self):
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=self.target, check=True)
        self.assertIn("made up, CC0", (self.target / "LICENSES.txt").read_text())
        self.assertEqual(list(self.folder.iterdir()), [self.target])

    def refused(self, message):
        with self.assertRaises(SystemExit) as stopped:
            self.get_from_mirror()
        self.assertIn(message, stopped.exception.code)

    def check_nothing_left(self):
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_an_archive_like_that_of_cifar_is_unpacked(self):
        self.offer_cifar()
        self.get_from_mirror()
        self.check_whole()
        for name, content in CIFAR_FILES.items():
            self.assertEqual((self.target / name.rpartition("/")[2]).read_bytes(), content)

    def test_photographs_become_records(self):
        # Of pixels (x, y, 0), and (x, y, 1).
        images = {f"pack/images/{name}.png": png(160, 40, lambda x, y, last=last: (x, y, last))
                  for last, name in enumerate(("first", "second"))}
        self.offer("crops", "pack.whl", zip_of({**images, "pack/__init__.py": b"raise SystemError"}), images,
                   train_crops=30, test_crops=7)
        self.get_from_mirror()
        self.check_whole()
        for file, count, columns in (("train.bin", 30, (0, 120)), ("test.bin", 7, (120, 160))):
            content = (self.target / file).read_bytes()
            records = [content[at:at + RECORD_BYTES] for at in range(0, len(content), RECORD_BYTES)]
            self.assertEqual([record[1] for record in records], [0, 1] * count)
            self.assertEqual(len(set(records)), 2 * count)
            for record in records:
                self.assertEqual(record[0], 0)
                x, y = record[2], record[2 + 1024]
                self.assertTrue(columns[0] <= x and x + 32 <= columns[1] and y + 32 <= 40)
                red = bytes(range(x, x + 32)) * 32
                green = b"".join(bytes([y + row]) * 32 for row in range(32))
                self.assertEqual(record[2:], red + green + bytes([record[1]]) * 1024)
        self.assertEqual((self.target / "fine_label_names.txt").read_text(), "first\nsecond\n")

    def test_texts_are_joined_in_the_order_of_the_table(self):
        texts = {"plays/b.txt": b"two", "plays/a.txt": b"one\n"}
        self.offer("text", "plays.tar.gz", tar_gz_of({**texts, "plays/c.txt": b"not wanted"}), texts)
        self.get_from_mirror()
        self.check_whole()
        self.assertEqual((self.target / "mine.txt").read_bytes(), b"two\n\n\none\n")

    def offer_by_pip(self, table_content=None):
        """A wheel in a folder that pip takes packages from; returns the environment for that."""
        index = self.folder / "index"
        index.mkdir()
        wheel = zip_of({"pack/a.txt": b"from a package\n", "pack-1.dist-info/RECORD": b"",
                        "pack-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pack\nVersion: 1\n",
                        "pack-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n"})
        (index / "pack-1-py3-none-any.whl").write_bytes(wheel)
        of_package = source("pack-1-py3-none-any.whl", table_content or wheel, ["pack/a.txt"], ["pip:pack==1"])
        self.script.DATA_SETS = {"mine": data_set("text", of_package)}
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}

    def test_a_file_of_a_package_comes_by_pip(self):
        with mock.patch.dict(os.environ, self.offer_by_pip()):
            self.get()
        self.assertEqual((self.target / "mine.txt").read_bytes(), b"from a package\n")

    def test_a_package_with_another_checksum_is_refused(self):
        with mock.patch.dict(os.environ, self.offer_by_pip(table_content=b"another")):
            with self.assertRaisesRegex(SystemExit, "no origin has pack-1-py3-none-any.whl with the right SHA-256"):
                self.get()
        self.assertEqual([path.name for path in self.folder.iterdir()], ["index"])

    def test_another_checksum_is_refused_and_leaves_nothing(self):
        self.offer_cifar()
        whole = self.mirror.files["cifar.tar.gz"]
        for content in (whole[:-1] + b"?", whole[:-1], whole + b"!", b""):
            self.mirror.files["cifar.tar.gz"] = content
            self.refused("no origin has cifar.tar.gz with the right SHA-256")
            self.check_nothing_left()
        self.assertIn("does not match", self.errors.getvalue())

    def test_the_next_origin_is_tried(self):
        self.offer_cifar()
        origins = [f"{self.mirror.url}/none", f"{self.mirror.url}/cifar.tar.gz"]
        self.script.DATA_SETS["mine"]["sources"][0]["origins"] = origins
        self.get()
        self.check_whole()
        self.assertEqual(self.mirror.requests, ["/none", "/cifar.tar.gz"])
        self.assertIn("404", self.errors.getvalue())

    def test_a_broken_connection_leaves_nothing(self):
        self.offer_cifar()
        self.mirror.cut_off = lambda: None
        self.refused("no origin has cifar.tar.gz")
        self.check_nothing_left()

    def test_signals_in_the_middle_of_a_download_leave_nothing(self):
        self.offer_cifar()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored in the background of a shell.
        for number in (signal.SIGTERM, signal.SIGINT):
            self.mirror.cut_off = lambda number=number: signal.pthread_kill(threading.main_thread().ident, number)
            self.refused("stopped")
            self.check_nothing_left()

    def files(self):
        stats = {path: path.stat() for path in self.target.iterdir()}
        return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}

    def test_a_second_run_downloads_and_changes_nothing(self):
        self.offer_cifar()
        self.get_from_mirror()
        before = self.files()
        self.get_from_mirror()
        self.assertIn("already, with the right checksums", self.printed.getvalue())
        self.assertEqual(self.files(), before)
        self.assertEqual(len(self.mirror.requests), 1)

    def test_a_damaged_data_set_and_another_one_are_refused(self):
        self.offer_cifar()
        self.get_from_mirror()
        (self.target / "test.bin").write_bytes(b"tesT")
        self.refused("is not mine, or was changed; remove it")
        self.offer("text", "plays.tar.gz", tar_gz_of({"a": b"a"}), ["a"], licences="other\n")
        (self.target / "test.bin").write_bytes(b"test")
        self.refused("is not mine, or was changed; remove it")

    def test_a_folder_with_other_files_is_never_touched(self):
        self.offer_cifar()
        self.target.mkdir()
        (self.target / "thesis.tex").write_text("years of work")
        self.refused("is not mine")
        self.assertEqual([path.name for path in self.target.iterdir()], ["thesis.tex"])
        self.assertEqual(self.mirror.requests, [])


class CommandLine(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60,
                              check=False)

    def test_lists_what_there_is(self):
        script = load_script()
        listed = self.run_script("--list").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in listed], list(script.DATA_SETS))

    def test_an_unknown_name_is_refused(self):
        load_script()
        done = self.run_script("fotos32")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "invalid choice: '?fotos32'? .*photos32")


if __name__ == "__main__":
    unittest.main()
