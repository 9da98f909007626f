"""Runs `lockstep data get` against a server that is made up, and that misbehaves.

usage: data_get.py <lockstep program>
"""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

from data_files import DataTestCase, png, recipe, source, tar_gz_of, zip_of

RECORD_BYTES = 2 + 3 * 32 * 32


class DataGet(DataTestCase):
    # What is made

    def photo_recipe(self):
        """Two photographs in a wheel: of pixels (x, y, 0), and (x, y, 1)."""
        images = {
            f"pack/images/{name}.png": png(160, 40, lambda x, y, last=last: (x, y, last))
            for last, name in enumerate(("first", "second"))
        }
        wheel = zip_of({**images, "pack/__init__.py": b"raise SystemError"})
        self.server.files["/files/pack-1-py3-none-any.whl"] = wheel
        sources = [
            source(
                wheel, package="My.Pack", file="pack-1-py3-none-any.whl", members=list(images)
            )
        ]
        return recipe("mine", sources, make="crops", train_crops=30, test_crops=7)

    def json_page(self):
        file = {"filename": "pack-1-py3-none-any.whl", "url": "../../files/pack-1-py3-none-any.whl"}
        return json.dumps({"meta": {"api-version": "1.0"}, "files": [{}, file]}).encode()

    def check_photos(self):
        for file, count, columns in (("train.bin", 30, (0, 120)), ("test.bin", 7, (120, 160))):
            content = (self.target / file).read_bytes()
            records = [
                content[at : at + RECORD_BYTES] for at in range(0, len(content), RECORD_BYTES)
            ]
            self.assertEqual([record[1] for record in records], [0, 1] * count)
            for record in records:
                self.assertEqual(record[0], 0)
                x, y = record[2], record[2 + 1024]
                self.assertTrue(columns[0] <= x and x + 32 <= columns[1] and y + 32 <= 40)
                red = bytes(range(x, x + 32)) * 32
                green = b"".join(bytes([y + row]) * 32 for row in range(32))
                self.assertEqual(record[2:], red + green + bytes([record[1]]) * 1024)
        names = (self.target / "fine_label_names.txt").read_text()
        self.assertEqual(names, "first\nsecond\n")
        self.assertIn("made up, CC0", (self.target / "LICENSES.txt").read_text())

    def test_photographs_of_a_wheel_become_records(self):
        self.server.files["/simple/my-pack/"] = self.json_page()
        result = self.get(self.photo_recipe(), f"--index-url={self.server.url}/simple")
        self.assertIn("60 training and 14 test images of 2 classes", result.stdout)
        self.check_photos()

    def test_the_index_may_be_html_named_by_pip_or_a_folder(self):
        a_recipe = self.photo_recipe()
        page = b'<html><a href="../../files/pack-1-py3-none-any.whl#sha256=0">x</a></html>'
        self.server.files["/simple/my-pack/"] = page
        self.get(a_recipe, PIP_INDEX_URL=f"{self.server.url}/simple/")
        self.check_photos()
        mirror = self.folder / "mirror" / "simple" / "my-pack"
        mirror.mkdir(parents=True)
        (mirror / "index.html").write_bytes(page)
        (self.folder / "mirror" / "files").mkdir()
        wheel = self.folder / "mirror" / "files" / "pack-1-py3-none-any.whl"
        wheel.write_bytes(self.server.files["/files/pack-1-py3-none-any.whl"])
        before = len(self.server.requests)
        # A flag wins over the environment.
        self.get(a_recipe, "--force", f"--index-url={mirror.parent.as_uri()}",
                 PIP_INDEX_URL="file:///none")
        self.check_photos()
        self.assertEqual(len(self.server.requests), before)

    def test_texts_of_a_source_archive_are_joined(self):
        texts = {"plays-1/texts/b.txt": b"two", "plays-1/texts/a.txt": b"one\n"}
        sdist = tar_gz_of({**texts, "plays-1/texts/c.txt": b"not wanted"})
        self.server.files["/simple/plays/"] = json.dumps(
            {"files": [{"filename": "plays-1.tar.gz", "url": "/plays-1.tar.gz"}]}
        ).encode()
        self.server.files["/plays-1.tar.gz"] = sdist
        sources = [source(sdist, package="plays", file="plays-1.tar.gz", members=list(texts))]
        a_recipe = recipe("mine", sources, make="text", text_file="plays.txt")
        self.get(a_recipe, f"--index-url={self.server.url}/simple")
        self.assertEqual((self.target / "plays.txt").read_bytes(), b"two\n\n\none\n")

    def test_an_archive_like_that_of_cifar_is_unpacked(self):
        files = {
            "cifar-100-binary/train.bin": bytes(RECORD_BYTES) * 20,
            "cifar-100-binary/test.bin": bytes(RECORD_BYTES) * 10,
            "cifar-100-binary/fine_label_names.txt": b"apple\n",
        }
        archive = tar_gz_of(files)
        self.server.files["/kriz/cifar.tar.gz"] = archive
        self.server.files["/moved"] = lambda handler: (
            handler.send_response(302),
            handler.send_header("Location", "/kriz/cifar.tar.gz"),
            handler.send_header("Content-Length", "0"),
            handler.end_headers(),
        )
        by_md5 = {
            "url": self.server.url + "/moved",
            "bytes": len(archive),
            "md5": hashlib.md5(archive).hexdigest(),
            "members": list(files),
        }
        other = {**by_md5, "md5": hashlib.md5(b"another").hexdigest()}
        self.refused(recipe("mine", [other]), "its MD5 is")
        self.get(recipe("mine", [by_md5]))
        for name, content in files.items():
            self.assertEqual((self.target / pathlib.Path(name).name).read_bytes(), content)

    def test_a_small_photograph_gives_the_squares_that_it_has(self):
        sources = []
        for name, width in (("small.png", 128), ("large.png", 160)):
            image = png(width, 32, lambda x, y: (x, y, 0))
            self.server.files["/" + name] = image
            sources.append(source(image, url=f"{self.server.url}/{name}"))
        self.get(recipe("mine", sources, make="crops", train_crops=3, test_crops=4))
        records = (self.target / "test.bin").read_bytes()
        self.assertEqual(list(records[1::RECORD_BYTES]), [0, 1, 1, 1, 1])

    # What is there already

    def test_a_second_run_does_nothing(self):
        a_recipe = self.one_file()
        self.get(a_recipe)
        first = (self.target / "file.bin").stat()
        asked = len(self.server.requests)
        result = self.get(a_recipe)
        self.assertIn("already, whole", result.stdout)
        self.assertEqual((self.target / "file.bin").stat(), first)
        self.assertEqual(len(self.server.requests), asked)

    def test_a_damaged_data_set_is_made_anew_by_force_only(self):
        a_recipe = self.one_file()
        self.get(a_recipe)
        file = self.target / "file.bin"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + b"x")
        self.refused(a_recipe, "file.bin was changed or damaged; --force makes it anew", code=2)
        self.get(a_recipe, "--force")
        self.assertEqual(file.read_bytes(), whole)

    def test_a_folder_with_other_files_is_never_touched(self):
        self.target.mkdir(parents=True)
        (self.target / "thesis.tex").write_text("years of work")
        for flags in ((), ("--force",)):
            self.refused(self.one_file(), "is in the way: it holds files", *flags, code=2)
        self.assertEqual((self.target / "thesis.tex").read_text(), "years of work")
        self.assertEqual(self.server.requests, [])

    def test_of_two_at_once_the_second_takes_what_the_first_made(self):
        content = b"12345" * 100_000
        a_recipe = self.one_file(content)
        self.server.files["/file.bin"] = self.server.wait_for(2, content)
        jobs = [
            subprocess.Popen(
                self.command(a_recipe), stdout=subprocess.PIPE, text=True, env=self.environment()
            )
            for _ in range(2)
        ]
        outputs = [job.communicate(timeout=60)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0])
        self.assertEqual(sum("already, whole" in output for output in outputs), 1, outputs)
        self.assertEqual((self.target / "file.bin").read_bytes(), content)
        self.assertEqual(self.leftovers(), [])

    # Servers that misbehave

    def test_bytes_of_another_file_are_refused(self):
        content = b"what the recipe means"
        self.server.files["/file.bin"] = content[:-1] + b"?"
        self.refused(self.one_file(content), "its SHA-256 is")
        self.server.files["/file.bin"] = content[:-1]
        self.refused(self.one_file(content), f"its size in bytes is {len(content) - 1}")
        self.server.files["/file.bin"] = content + b"!"
        self.refused(self.one_file(content), f"more than the {len(content)} bytes")
        self.assertFalse(self.target.exists())

    def test_a_broken_connection_is_taken_up_where_it_broke(self):
        content = bytes(range(251)) * 4000
        self.server.files["/file.bin"] = self.server.cut_off(content, times=2)
        self.get(self.one_file(content))
        half, rest = len(content) // 2, len(content) - len(content) // 2
        ranges = [asked for _, asked in self.server.requests]
        self.assertEqual(ranges, [None, f"bytes={half}-", f"bytes={half + rest // 2}-"])
        self.assertEqual((self.target / "file.bin").read_bytes(), content)

    def test_it_starts_again_where_the_server_knows_no_ranges(self):
        content = bytes(range(251)) * 4000
        self.server.files["/file.bin"] = self.server.no_ranges(content)
        self.get(self.one_file(content))
        self.assertEqual((self.target / "file.bin").read_bytes(), content)

    def test_a_download_that_is_cut_off_each_time_fails(self):
        content = bytes(range(251)) * 4000
        self.server.files["/file.bin"] = self.server.cut_off(content, times=100)
        self.refused(self.one_file(content), "ended after")
        self.assertEqual(len(self.server.requests), 4)

    def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not(self):
        content = b"12345"
        self.server.files["/file.bin"] = self.server.busy_once(content)
        self.get(self.one_file(content))
        missing = recipe("mine", [source(content, url=self.server.url + "/none")])
        self.target = self.folder / "sets" / "other"
        result = self.run_get(missing)
        self.assertEqual(result.returncode, 1)
        self.assertIn("/none: the server answered with status 404", result.stderr)
        self.assertEqual([path for path, _ in self.server.requests].count("/none"), 1)

    def test_silence_ends_at_the_time_limit(self):
        content = b"12345" * 100_000
        self.server.files["/file.bin"] = self.server.silent
        self.refused(self.one_file(content), "next to nothing arrived for 1 s", "--timeout=1")
        self.server.files["/file.bin"] = self.server.wait_in_the_middle(content)
        self.refused(self.one_file(content), "(250000 bytes are there)", "--timeout=1")

    def test_paths_that_leave_the_folder_are_refused(self):
        for path in ("../evil.txt", "/tmp/evil.txt", "mine/../../evil.txt"):
            for archive in (zip_of({"mine/a.bin": b"a", path: b"x"}),
                            tar_gz_of({"mine/a.bin": b"a", path: b"x"})):
                self.server.files["/a"] = archive
                sources = [source(archive, url=self.server.url + "/a", members=["mine/a.bin"])]
                self.refused(recipe("mine", sources), f"'{path}' would be unpacked outside")
        self.assertFalse(self.target.exists())

    def test_hard_links_are_refused_which_would_be_empty_files(self):
        archive = tar_gz_of({"mine/a.bin": b"a"}, hard_links=[("mine/b.bin", "mine/a.bin")])
        self.server.files["/a"] = archive
        members = ["mine/a.bin", "mine/b.bin"]
        sources = [source(archive, url=self.server.url + "/a", members=members)]
        self.refused(recipe("mine", sources), "mine/b.bin is no regular file")

    def test_an_index_without_the_file_says_so(self):
        index_url = self.server.url.replace("http://", "http://me:secret@") + "/simple"
        for page in (b'{"files": []}', b'{"files": [{"filename": ', b"<html></html>", b""):
            self.server.files["/simple/my-pack/"] = page
            message = "does not list pack-1-py3-none-any.whl"
            self.refused(self.photo_recipe(), message, f"--index-url={index_url}")
        del self.server.files["/simple/my-pack/"]
        self.refused(self.photo_recipe(), "status 404", f"--index-url={index_url}")

    # Being stopped

    def stopped_in_the_middle(self, signal_number):
        content = b"12345" * 100_000
        self.server.files["/file.bin"] = self.server.wait_in_the_middle(content)
        a_recipe = self.one_file(content)
        process = subprocess.Popen(
            self.command(a_recipe), stderr=subprocess.PIPE, text=True, env=self.environment()
        )
        self.assertTrue(self.server.half_sent.wait(60))
        process.send_signal(signal_number)
        errors = process.communicate(timeout=60)[1]
        self.assertFalse(self.target.exists())
        self.server.files["/file.bin"] = content
        return a_recipe, process.returncode, errors

    def test_a_kill_leaves_nothing_half_and_the_next_run_tidies_up(self):
        a_recipe, code, _ = self.stopped_in_the_middle(signal.SIGKILL)
        self.assertEqual(code, -signal.SIGKILL)
        self.assertEqual(len(self.leftovers()), 1)
        self.get(a_recipe)

    def test_ctrl_c_ends_it_and_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.server.half_sent.clear()
            _, code, errors = self.stopped_in_the_middle(number)
            self.assertEqual(code, 128 + number)
            self.assertIn(f"stopped by {number.name}", errors)
            self.assertEqual(self.leftovers(), [])


if __name__ == "__main__":
    DataTestCase.lockstep = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
