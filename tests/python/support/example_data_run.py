"""What the tests of examples/data/get.py share: the script with a made-up table, archives, and a server on loopback."""

import hashlib
import http.server
import importlib.util
import io
import os
import pathlib
import tarfile
import tempfile
import threading
import unittest
import zipfile

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "examples/data/get.py"


def load_script():
    """The script as a module of its own, so that a test may change its table."""
    for module in ("pooch", "PIL"):
        if importlib.util.find_spec(module) is None:
            raise unittest.SkipTest(f"no {module} in this Python")
    spec = importlib.util.spec_from_file_location("get_example_data", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def png(width, height, pixel):
    """An RGB image of pixel(x, y) -> three values."""
    from PIL import Image

    data = bytes(value for y in range(height) for x in range(width) for value in pixel(x, y))
    stream = io.BytesIO()
    Image.frombytes("RGB", (width, height), data).save(stream, "PNG")
    return stream.getvalue()


def zip_of(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tar_gz_of(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def source(file, content, members, origins=()):
    return {"file": file, "megabytes": 0.1, "sha256": hashlib.sha256(content).hexdigest(), "origins": origins,
            "members": list(members)}


def data_set(make, *sources, **fields):
    return {"summary": "made up", "make": make, "sources": sources, "licences": "made up, CC0\n", **fields}


class Mirror:
    """Serves `files`: name -> bytes. `cut_off` is called when half of a file is sent, instead of the other half."""

    def __init__(self):
        os.environ["no_proxy"] = "127.0.0.1"
        self.files = {}
        self.requests = []
        self.cut_off = None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                content = outer.files.get(self.path.removeprefix("/"))
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:len(content) // 2] if outer.cut_off else content)
                if outer.cut_off:
                    outer.cut_off()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class DataTestCase(unittest.TestCase):
    """A mirror, a folder, and the script, whose table has only the data set `mine`."""

    def setUp(self):
        self.script = load_script()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.target = self.folder / "mine"
        self.mirror = Mirror()
        self.addCleanup(self.mirror.close)

    def offer(self, make, file, content, members, **fields):
        """Makes `mine` of one archive, and puts that on the mirror."""
        self.mirror.files[file] = content
        self.script.DATA_SETS = {"mine": data_set(make, source(file, content, members), **fields)}

    def get(self, *flags):
        self.script.main(["mine", f"--to={self.target}", *flags])

    def get_from_mirror(self):
        self.get(f"--mirror={self.mirror.url}")
