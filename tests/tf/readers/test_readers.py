"""Readers give each rank its part: no row is read twice or omitted, and fewer bytes are read."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import os
import pickle
import re
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extras import load
from tiers import full

ROWS, COLUMNS = 20_011, 12
SMALL = 11  # rows
NETCDF = importlib.util.find_spec("netCDF4") is not None


def _csv(path: Path, rows: np.ndarray, delimiter: str = ",", head: str = "") -> None:
    lines = [delimiter.join(f"{value:g}" for value in row) for row in rows]
    path.write_text(head + "\n".join(lines) + "\n")


def _idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def _netcdf(path: Path, rows: np.ndarray) -> None:
    import netCDF4

    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("rows", None)
        file.createDimension("columns", rows.shape[1] - 1)
        file.createVariable("data", "i1", ("rows", "columns"))[:] = rows[:, 1:].astype(np.int8)
        file.createVariable("labels", "i4", ("rows",))[:] = rows[:, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    import h5py

    made = tmp_path_factory.mktemp("files")
    rows = np.zeros((ROWS, COLUMNS))
    rows[:, 0], rows[:, 1] = np.arange(ROWS) % 10, np.arange(ROWS)  # a label and its number
    rows[:, 2:] = 0.123456
    head = ",".join("abcdefghijkl") + "\n"
    _csv(made / "rows.csv", rows, head=head)
    small = np.array([[i % 3, i, 0.5] for i in range(SMALL)])
    _csv(made / "small.csv", small)
    _csv(made / "tiny.csv", small[:1])
    _csv(made / "tabs.txt", small[:, ::-1], "\t")
    _csv(made / "signs.csv", np.array([[(-1) ** i, i] for i in range(6)]))
    (made / "csvs").mkdir()
    for number in range(3):
        _csv(made / "csvs" / f"{number}.csv", np.array([[7, number * 10 + i] for i in range(5)]))
    for name, count in (("rows.h5", ROWS), ("small.h5", SMALL)):
        with h5py.File(made / name, "w") as file:
            file["data"] = np.repeat(np.arange(count, dtype=np.float64)[:, None], 40, 1)
            file["labels"] = np.arange(count) % 10
    with h5py.File(made / "classes.h5", "w") as file:
        for number, name in enumerate(("cats", "dogs")):
            file[name] = np.arange(5)[:, None] + 100 * number
    if NETCDF:
        _netcdf(made / "rows.nc", np.repeat(rows[:, :1] % 7, 400, 1))
        _netcdf(made / "small.nc", small)
    _images(made)
    return made


def _images(made: Path) -> None:
    mnist, ten, hundred = made / "MNIST", made / "CIFAR10", made / "CIFAR100"
    mnist.mkdir()
    (ten / "cifar-10-batches-py").mkdir(parents=True)
    (hundred / "cifar-100-python").mkdir(parents=True)
    for name, count in (("train", 50_005), ("t10k", 7)):
        pixels = np.zeros((count, 2, 2), np.uint8)
        pixels[:, 0, 0] = np.arange(count) % 251
        _idx(mnist / f"{name}-images-idx3-ubyte.gz", pixels)
        _idx(mnist / f"{name}-labels-idx1-ubyte.gz", np.arange(count) % 10)

    def batch(path: Path, first: int, count: int, labels: str) -> None:
        data = np.repeat(np.arange(first, first + count, dtype=np.uint8)[:, None], 3072, 1)
        answers = [number % 10 for number in range(first, first + count)]
        path.write_bytes(pickle.dumps({"data": data, labels: answers}, protocol=2))

    for number in range(5):
        batch(ten / f"cifar-10-batches-py/data_batch_{number + 1}", number * 4, 4, "labels")
    batch(ten / "cifar-10-batches-py/test_batch", 100, 5, "labels")
    batch(hundred / "cifar-100-python/train", 0, 20, "fine_labels")
    batch(hundred / "cifar-100-python/test", 100, 5, "fine_labels")


def parts(everything: list[Any], ranks: int) -> list[list[Any]]:
    return [part.tolist() for part in np.array_split(np.array(everything), max(ranks, 1))]


@pytest.fixture(scope="module", params=[2, full(0), full(3), full(4)])
def read(request: Any, launch: Any, scripts: Path, folder: Path) -> list[dict[str, Any]]:
    run = launch(
        scripts / "read_parts.py", np=request.param, args=[folder], timeout=300, pooled=True
    )
    return run.check().results


def test_parts_are_contiguous_and_no_row_is_read_twice(read):
    size = len(read)
    rows = [[i % 10, i] for i in range(ROWS)]
    for kind in ("csv", "hdf5"):
        assert [found[kind] for found in read] == parts(rows, size), kind
    small = [[i % 3, i] for i in range(SMALL)]
    assert [found["no labels"] for found in read] == parts([[*row, 0.5] for row in small], size)
    assert [[a for a, _ in found["tabs"]] for found in read] == parts(
        [i % 3 for i in range(SMALL)], size
    )
    assert [found["tiny"] for found in read] == [[[0, 0]]] + [[]] * (size - 1)
    assert len({found["csv spec"] for found in read}) == 1


def test_a_rank_reads_its_part_of_the_bytes(read, folder):
    """CSV files are read twice, as are NetCDF's records, which interleave two arrays. Headers and
    blocks add some: the netCDF library reads 4 MB first."""
    size = len(read)
    heads = {"netcdf": 4 << 20}
    kinds = [("csv", "rows.csv", 2), ("hdf5", "rows.h5", 1)]
    for kind, name, times in kinds + [("netcdf", "rows.nc", 2)] * NETCDF:
        whole = (folder / name).stat().st_size
        for found in read:
            share = (found[f"{kind} bytes"] - min(whole, heads.get(kind, 0))) / whole
            assert times / size * 0.95 <= share <= times / size + 0.1, (kind, share)


@pytest.mark.skipif(not NETCDF, reason="netCDF4 is not installed: pip install netCDF4")
def test_netcdf_parts_equal_the_file(read):
    labels = [[i % 10 % 7, i % 10 % 7] for i in range(ROWS)]
    assert [found["netcdf"] for found in read] == parts(labels, len(read))
    for found, mine in zip(read, parts(labels, len(read)), strict=True):
        first, count, answers = found["DataSet netcdf"]
        assert (first[0], count) == (mine[0][0], len(mine))
        assert answers == [label for label, _ in mine]


def test_a_csv_dataset_gives_each_rank_its_part(read):
    size = len(read)
    for found, mine in zip(read, parts(list(range(SMALL)), size), strict=True):
        training, validation, labels, classes = found["DataSet csv"]
        assert [*training, *validation] == mine
        assert len(validation) == int(len(mine) * 0.25)
        assert (labels, classes) == ([row % 3 for row in training], 3)
        assert "test_batch_size" in found["no batch size"]
    assert sum((found["DataSet signs"] for found in read), []) == [1, 0] * 3
    files = [parts([number * 10 + i for i in range(5)], size) for number in range(3)]
    assert [found["DataSet folder"] for found in read] == [
        sum((file[rank] for file in files), []) for rank in range(size)
    ]


def test_a_dataset_of_classes_gives_each_rank_its_part(read):
    rows = sorted(row for found in read for row in found["DataSet hdf5"])
    assert rows == [[0, i] for i in range(5)] + [[1, 100 + i] for i in range(5)]


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10", "CIFAR100"])
def test_a_dataset_of_images_gives_each_rank_its_part(read, name):
    if name == "MNIST":
        numbers = [list(range(50_000)), list(range(50_000, 50_005)), list(range(7))]
    else:
        numbers = [list(range(10, 20)), list(range(10)), list(range(100, 105))]
    for split, those in enumerate(numbers):
        pixels = [(number % 251) / 2 for number in those]
        assert [found[name][split][0] for found in read] == parts(pixels, len(read))
        labels = [number % 10 for number in those]
        assert [found[name][split][1] for found in read] == parts(labels, len(read))


def test_fit_treats_it_as_the_ranks_own_data(read):
    """Equal to one process with all rows in a batch; predict returns the rank's rows."""
    x = np.array([[i, 0.5] for i in range(SMALL)])
    y = np.arange(SMALL) % 3
    kernel, bias, losses = np.ones(2), 0.0, []
    for _ in range(2):
        off = x @ kernel + bias - y
        losses.append(np.mean(off**2))
        kernel = kernel - 0.01 * 2 * np.mean(off[:, None] * x, axis=0)
        bias = bias - 0.01 * 2 * float(np.mean(off))
    for found, mine in zip(read, parts(list(range(SMALL)), len(read)), strict=True):
        assert np.allclose(found["weights"], [*kernel, bias], atol=1e-5)
        assert np.allclose(found["loss"], losses, rtol=1e-4)
        assert found["predicted"] == len(mine)


BAD = {
    "cell.csv": ("0,1,2\n1,2,3\n1,x,3\n", "row 3, column 2: 'x' is not a number"),
    "short.csv": ("0,1\n1\n", "row 2 has 1 columns, but the rows before it have 2"),
    "gap.csv": ("0,1\n\n1,2\n", "row 2 is an empty line"),
    "named.head": ("a,b\n0,1\n1,y\n", "row 2 after the header, column 2: 'y' is not a number"),
    "odd.labels": ("3,1\n5,2\n", "the labels, in the first column, range from 3 to 5"),
    "signs-and-0.labels": ("-1,1\n0,2\n1,3\n", "range from -1 to 1; they must be whole numbers"),
    "x.kind": ("", "DataSet 'XML' is unknown; accepted: cifar10"),
}


def test_bad_values_are_reported_with_row_and_column(launch, scripts, folder, tmp_path):
    for name, (text, _) in BAD.items():
        (tmp_path / name).write_text(text)
    paths = [tmp_path / name for name in BAD]
    run = launch(
        scripts / "read_errors.py", np=0, args=[*paths, folder / "small.h5"], pooled=True
    ).check()
    found = run.results[0]
    for name, (_, words) in BAD.items():
        assert words in found[name], found
    assert "has no array 'answers'; it contains data, labels" in found["small.h5"]


@pytest.mark.full
def test_a_row_that_one_rank_cannot_read_is_reported_on_all(launch, scripts, tmp_path):
    path = tmp_path / "late.csv"
    path.write_text("0,1\n" * 999 + "0,x\n")
    run = launch(scripts / "read_errors.py", np=2, args=[path])
    assert "row 1000, column 2: 'x' is not a number" in run.stdout[1] + run.stderr[1]


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_calls_functions_is_refused(tmp_path, protocol):
    """NumPy's modules import os, and a pickle of protocol 4 may name anything that they import."""
    images = load("tensorflow.mpi._src.readers.images")

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    (tmp_path / "cifar-100-python").mkdir()
    text = pickle.dumps({"data": Evil()}, protocol)
    if protocol == 4:
        module, name = b"numpy.testing._private.utils", b"os.mkdir"
        text = text.replace(b"\x8c\x05posix", b"\x8c" + bytes([len(module)]) + module)
        text = text.replace(b"\x8c\x05mkdir", b"\x8c" + bytes([len(name)]) + name)
        frame = text.index(b"\x95")  # the frame has another length now
        text = text[:frame] + text[frame + 9 :]
    (tmp_path / "cifar-100-python" / "train").write_bytes(text)
    with pytest.raises(ValueError, match="is not part of a NumPy array"):
        images.cifar100(str(tmp_path))
    assert not (tmp_path / "made").exists()


# --- Errors, in this process ---------------------------------------------------------------------


def _refuses(words: str, function: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(Exception, match=re.escape(words)):
        function(*arguments, **named)


def test_bad_image_files_are_refused(tmp_path):
    images = load("tensorflow.mpi._src.readers.images")
    folder = str(tmp_path)
    missing = f"MNIST is missing in '{folder}': put train-images-idx3-ubyte (or .gz) there"
    _refuses(missing, images.mnist, folder)
    _refuses(f"is missing: unpack CIFAR's archive in '{folder}'", images.cifar10, folder)
    idx = tmp_path / "train-images-idx3-ubyte"
    idx.write_bytes(struct.pack(">HBBI", 0, 9, 1, 0))
    _refuses("is not an idx file of bytes", images.mnist, folder)
    idx.write_bytes(struct.pack(">HBBI", 0, 8, 1, 2))
    _refuses("has 0 bytes, but its header says (2,)", images.mnist, folder)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("train-images-idx3-ubyte", b"\0\0", "error: unpack_from requires"),
        ("train-images-idx3-ubyte.gz", gzip.compress(b"1234", mtime=0)[:-9], "EOFError: "),
        ("train-images-idx3-ubyte.gz", b"<html>", "BadGzipFile: Not a gzipped file"),
        ("mnist.npz", b"PK\3\4", "BadZipFile: "),
        ("cifar-100-python/train", b"", "EOFError: "),
        ("cifar-100-python/train", pickle.dumps([1])[:-1], "UnpicklingError: "),
        ("cifar-100-python/train", pickle.dumps({"data": 1}), "KeyError: 'fine_labels'"),
    ],
)
def test_a_damaged_image_file_is_named(tmp_path, name, content, why):
    images = load("tensorflow.mpi._src.readers.images")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    read = images.cifar100 if "cifar" in name else images.mnist
    with pytest.raises(ValueError, match="download it again") as raised:
        read(str(tmp_path))
    assert f"'{path}' is damaged, or not the published file ({why}" in str(raised.value)


def test_arrays_that_cannot_be_read_are_refused(monkeypatch):
    arrays = load("tensorflow.mpi._src.readers.arrays")
    _refuses(
        "is a single value; an array with rows is needed",
        arrays.rows,
        np.array(1.0),
        "x.h5: 'data'",
    )
    _refuses("x has 2 rows, but the other array has 3", arrays.rows, np.zeros(2), "x", 3)
    for name in ("h5py", "netCDF4"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    _refuses("x.h5: to read HDF5, pip install h5py", arrays.hdf5, "x.h5")
    _refuses("x.nc: to read NetCDF, pip install netCDF4", arrays.netcdf, "x.nc")


def test_text_that_cannot_be_read_is_refused(tmp_path):
    text = load("tensorflow.mpi._src.readers.text")
    path = tmp_path / "x.csv"
    path.write_text("1_0,2\n")  # which float() accepts and NumPy does not
    _refuses("x.csv: rows from 1 on are not numbers", text.read, str(path))
    with path.open("rb") as file:
        _refuses("became shorter while it was being read", text._exactly, file, 7)


def test_requests_that_a_dataset_cannot_serve_are_refused(tmp_path, monkeypatch):
    datasets = load("tensorflow.mpi.datasets")
    _refuses(
        "DataSet takes at most 10 arguments after its name", datasets.DataSet, "CSV", *range(11)
    )
    _refuses("DataSet: frob is given twice, or is not an argument", datasets.DataSet, "CSV", frob=1)
    path = tmp_path / "x.csv"
    path.write_text("")
    _refuses("x.csv has no rows", datasets.DataSet, "CSV", train_file=str(path))
    path.write_text("0,1\n1,2\n")
    made = datasets.DataSet("CSV", train_file=str(path), test_batch_size=1)
    _refuses("DataSet CSV was created without train_batch_size; pass it", made.next_train_batch)
    _refuses("DataSet CSV has no testing rows on this rank", made.next_test_batch)
    no_variables = types.SimpleNamespace(variables={})
    monkeypatch.setattr(
        datasets.arrays, "netcdf", lambda path: contextlib.nullcontext(no_variables)
    )
    said = "must have one variable of bytes and one of integers"
    _refuses(said, datasets.DataSet, "NETCDF", train_file="x.nc")


def test_bad_columns_of_a_csv_file_are_refused(tmp_path, monkeypatch):
    data = load("tensorflow.mpi.data")
    path = tmp_path / "x.csv"
    path.write_text("0,1\n1,2\n")
    _refuses(
        "x.csv has 2 columns; label_column=2 is out of range",
        data.from_csv,
        str(path),
        label_column=2,
    )
    other = np.array([[1, 2, 1], [1, 3, 1]])  # rows, columns, integer labels of two ranks
    monkeypatch.setattr(
        data.parts,
        "gather_numbers",
        lambda mine, what: other if what.startswith("columns") else np.array(mine),
    )
    _refuses("the ranks' rows have 2 and 3 columns", data.from_csv, str(path))
