"""What the tests of `lockstep data` have in common: made-up archives and recipes, and a run of it."""

import hashlib
import io
import json
import os
import pathlib
import struct
import subprocess
import tarfile
import tempfile
import unittest
import zipfile
import zlib

from data_server import DataServer


def png(width, height, pixel):
    """An RGB image of pixel(x, y) -> three bytes."""
    rows = b"".join(
        b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height)
    )

    def chunk(kind, data):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part)
        for part in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )


def zip_of(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tar_gz_of(files, hard_links=()):
    """`hard_links`: pairs of a name and the file that it is another name of."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, file in hard_links:
            member = tarfile.TarInfo(name)
            member.type = tarfile.LNKTYPE
            member.linkname = file
            member.size = len(files[file])  # as some programs write it, though no content follows
            archive.addfile(member)
    return stream.getvalue()


def source(content, **fields):
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), **fields}


def recipe(name, sources, make="files", **fields):
    return {
        "name": name,
        "summary": "made up",
        "sources": sources,
        "make": make,
        "licences": ["made up, CC0"],
        **fields,
    }


class DataTestCase(unittest.TestCase):
    """A server, a target folder, and `lockstep data get` from the one to the other."""

    lockstep = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.target = self.folder / "sets" / "mine"
        self.server = DataServer()
        self.addCleanup(self.server.close)

    def command(self, a_recipe, *flags):
        file = self.folder / "recipe.json"
        file.write_text(json.dumps(a_recipe))
        return [self.lockstep, "data", "get", f"--recipe={file}", f"--to={self.target}", *flags]

    def environment(self, **variables):
        names = ("http_proxy", "https_proxy", "all_proxy", "pip_index_url")
        kept = {name: value for name, value in os.environ.items() if name.lower() not in names}
        return {**kept, **variables}

    def run_get(self, a_recipe, *flags, **variables):
        return subprocess.run(
            self.command(a_recipe, *flags),
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment(**variables),
        )

    def get(self, a_recipe, *flags, **variables):
        result = self.run_get(a_recipe, *flags, **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("\x1b", result.stderr)
        checked = subprocess.run(
            ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=self.target
        )
        self.assertEqual(checked.returncode, 0)
        self.assertEqual(self.leftovers(), [])
        return result

    def refused(self, a_recipe, message, *flags, code=1, **variables):
        result = self.run_get(a_recipe, *flags, **variables)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(message, result.stderr)
        # Beside it there is only how far a download is, when it takes longer than two seconds.
        self.assertEqual(result.stderr.count("lockstep: "), 1, result.stderr)
        self.assertTrue(result.stderr.splitlines()[-1].startswith("lockstep: "), result.stderr)
        self.assertNotIn("secret", result.stderr)
        self.assertEqual(self.leftovers(), [])
        return result

    def leftovers(self):
        parent = self.target.parent
        entries = parent.iterdir() if parent.exists() else ()
        return [path.name for path in entries if path != self.target]

    def one_file(self, content=b"12345" * 100_000, path="/file.bin"):
        """A recipe of one file at `path` of the server."""
        self.server.files.setdefault(path, content)
        return recipe("mine", [source(content, url=self.server.url + path)])
