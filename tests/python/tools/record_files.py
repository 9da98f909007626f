"""What a training writes of itself is read by those it is for: event files by TensorBoard's own reader, CSV by Python's.

    record_files.py RECORD_WORKER [unittest arguments]
"""

import csv
import importlib.util
import io
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

WORKER = os.path.abspath(sys.argv[1])
DEADLINE_S = 60


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"Python's {package} is not installed")


def work(*arguments):
    return subprocess.run([WORKER, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name, "run")

    def write(self, *arguments):
        result = work(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)


@needs("tensorboard")
class Events(Files):
    def read(self):
        from tensorboard.backend.event_processing import event_accumulator
        kinds = dict.fromkeys((event_accumulator.SCALARS, event_accumulator.IMAGES, event_accumulator.HISTOGRAMS,
                               event_accumulator.TENSORS), 0)
        return event_accumulator.EventAccumulator(str(self.folder), size_guidance=kinds).Reload()

    def test_every_kind_and_value_is_read(self):
        self.write("events", self.folder, 0, 4)
        (file,) = self.folder.iterdir()
        self.assertRegex(file.name, rf"^events\.out\.tfevents\.\d{{10}}\.{os.uname().nodename}\.\d+\.0$")
        events = self.read()
        tags = events.Tags()
        self.assertEqual(tags["scalars"], ["loss/train", "not finite"])
        self.assertEqual(tags["histograms"], ["weights"])
        self.assertEqual(tags["images"], ["image", "grid"])
        self.assertEqual(tags["tensors"], ["notes/text_summary"])
        self.assertEqual([(event.step, event.value) for event in events.Scalars("loss/train")],
                         [(step, struct.unpack("f", struct.pack("f", 1 / (step + 1)))[0]) for step in range(4)])
        self.assertTrue(math.isnan(events.Scalars("not finite")[0].value))
        texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("notes/text_summary")]
        self.assertEqual(texts, [f"step **{step}** äöü" for step in range(4)])
        self.assertEqual(events.SummaryMetadata("notes/text_summary").plugin_data.plugin_name, "text")

    def test_histograms_have_every_number(self):
        self.write("events", self.folder, 0, 3)
        for event in self.read().Histograms("weights"):
            values = [0.5 * number * (event.step + 1) for number in range(-20, 21)]
            histogram = event.histogram_value
            self.assertEqual((histogram.min, histogram.max, histogram.num), (values[0], values[-1], 41))
            self.assertAlmostEqual(histogram.sum, 0)
            self.assertAlmostEqual(histogram.sum_squares, sum(value * value for value in values))
            below = -math.inf
            for limit, count in zip(histogram.bucket_limit, histogram.bucket, strict=True):
                self.assertEqual(count, sum(below <= value < limit for value in values), (below, limit))
                below = limit

    @needs("PIL")
    def test_images_have_every_pixel(self):
        from PIL import Image
        self.write("events", self.folder, 0, 2)
        events = self.read()
        for event in events.Images("image"):
            image = Image.open(io.BytesIO(event.encoded_image_string))
            self.assertEqual((event.width, event.height, image.size, image.mode), (5, 3, (5, 3), "RGB"))
            for x in range(5):
                for y in range(3):
                    expected = tuple(math.floor(255 * part + 0.5) for part in (x / 4, y / 4, event.step / 10))
                    for a, b in zip(image.getpixel((x, y)), expected):
                        self.assertLessEqual(abs(a - b), 1)
        grid = Image.open(io.BytesIO(events.Images("grid")[0].encoded_image_string))
        self.assertEqual((grid.size, grid.mode), ((8 * 4 - 2, 2 * 5 - 2), "L"))
        self.assertEqual([grid.getpixel((4 * (i % 8) + 1, 5 * (i // 8) + 2)) for i in range(10)], list(range(10)))
        self.assertEqual(grid.getpixel((2, 0)), 0)

    def test_a_run_that_goes_on_replaces_what_was_given_up(self):
        self.write("events", self.folder, 0, 7)
        self.write("events", self.folder, 4, 9, "purge")
        self.assertEqual(len(list(self.folder.iterdir())), 2)
        events = self.read()
        self.assertEqual([event.step for event in events.Scalars("loss/train")], list(range(9)))
        self.assertEqual([event.step for event in events.Histograms("weights")], list(range(9)))

    def test_a_run_that_goes_on_is_read_last_though_the_clock_was_set_back(self):
        self.write("events", self.folder, 0, 7)
        (earlier,) = self.folder.iterdir()
        *start, seconds, host, process, number = earlier.name.split(".")
        earlier.rename(self.folder / ".".join([*start, str(int(seconds) + 3600), host, "9999999", number]))
        self.write("events", self.folder, 4, 9, "purge")
        self.assertEqual([event.step for event in self.read().Scalars("loss/train")], list(range(9)))

    def test_what_a_killed_run_left_half_is_passed_over(self):
        self.write("events", self.folder, 0, 3)
        (file,) = self.folder.iterdir()
        os.truncate(file, file.stat().st_size - 5)  # In the middle of the last record, "not finite".
        events = self.read()
        self.assertEqual([event.step for event in events.Scalars("loss/train")], [0, 1, 2])
        self.assertNotIn("not finite", events.Tags()["scalars"])

    def test_a_folder_that_cannot_be_made_gets_one_line(self):
        result = work("events", "/proc/none", 0, 1)
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1), result.stderr)
        self.assertIn("choose a folder that this process may write", result.stderr)

    def test_a_full_disk_gets_one_line(self):
        # Files of this process may have no more than 2 kB.
        result = subprocess.run(["bash", "-c", f"ulimit -f 2; trap '' XFSZ; exec {WORKER} events {self.folder} 0 30"],
                                capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertIn("write events to ", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


class Csv(Files):
    def read(self):
        with open(self.folder / "metrics.csv", newline="") as file:
            return list(csv.DictReader(file))

    def test_columns_appear_as_metrics_do_and_rows_are_appended(self):
        self.folder.mkdir()
        self.write("csv", self.folder, 0, 3)
        self.write("csv", self.folder, 3, 6)
        rows = self.read()
        self.assertEqual([int(row["step"]) for row in rows], [0, 1, 2, 2, 3, 4, 5, 5])
        self.assertEqual(list(rows[0]), ["step", "train, loss", 'val "loss"'])
        for row in rows:
            self.assertNotIn(None, row)
            if row["train, loss"]:
                self.assertAlmostEqual(float(row["train, loss"]), 1 / (int(row["step"]) + 1), places=8)
        self.assertTrue(math.isnan(float(rows[3]['val "loss"'])))
        self.assertEqual([row['val "loss"'] for row in rows[4:]], ["", "", "", "5"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:])
