"""The command line of build/wheel.py. An error is one line on stderr, with exit status 1."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from .compat import compat
from .errors import BuildError, disk_full, is_disk_full
from .layout import CPU, GPU, Layout
from .lock import for_version
from .make import make
from .refresh import refresh, refresh_from, unpack
from .release import release
from .target import describe
from .verify import verify


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        options = _parser().parse_args(arguments)
        lines = options.run(options)
        for line in lines:
            print(line)
        sys.stdout.flush()
        return 0
    except BuildError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted: no partial files were left behind", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ImportError as error:
        return _fail(
            f"{error.name or error} is missing from {sys.prefix}: run {sys.executable} -m pip"
            " install -r build/requirements.txt"
        )
    except OSError as error:
        if is_disk_full(error):
            return _fail(str(disk_full(error.filename or Path.cwd())))
        return _fail(f"{error.filename}: {error.strerror}: fix this and run again")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(message: str, status: int = 1) -> int:
    sys.stdout.flush()
    print(f"wheel.py: {' '.join(message.split())}", file=sys.stderr)
    return status


def _layout(options: argparse.Namespace) -> Layout:
    return for_version(Layout.of_checkout(options.cache, options.flavour), options.tensorflow)


def _make(options: argparse.Namespace) -> list[str]:
    layout = _layout(options)
    out = options.out or layout.root / "wheels"
    return [str(make(layout, describe(options.python), out, options.jobs))]


def _release(options: argparse.Namespace) -> list[str]:
    layout = _layout(options)
    return release(layout, options.out or layout.root / "wheels", options.jobs)


def _verify(options: argparse.Namespace) -> list[str]:
    layout = _layout(options)
    lines = []
    for wheel in options.wheels:
        lines += [f"{wheel.name}:", *verify(layout, wheel).lines()]
    return lines


def _compat(options: argparse.Namespace) -> list[str]:
    layout = Layout.of_checkout(options.cache)
    python = options.python or sys.executable
    return compat(layout, describe(python), python, options.what, build=options.build)


def _unpack(options: argparse.Namespace) -> list[str]:
    return unpack(_layout(options), describe(options.python), options.directory)


def _refresh(options: argparse.Namespace) -> list[str]:
    layout, target = _layout(options), describe(options.python)
    if options.directory:
        return refresh_from(layout, options.directory)
    return refresh(layout, target)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wheel.py",
        description="Builds and verifies the patched TensorFlow wheel and maintains its patches.",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--cache",
        type=Path,
        help="directory for downloads and Bazel's output (default: .cache in the checkout)",
    )
    python = argparse.ArgumentParser(add_help=False)
    python.add_argument(
        "--python", help="the Python to build the wheel for (default: the one running this)"
    )
    flavour = argparse.ArgumentParser(add_help=False)
    flavour.add_argument(
        "--gpu",
        dest="flavour",
        action="store_const",
        const=GPU,
        default=CPU,
        help="build the GPU wheel (….cuda) from tensorflow; default: the CPU wheel (….cpu), from"
        " tensorflow-cpu",
    )
    flavour.add_argument(
        "--tensorflow",
        metavar="VERSION",
        help="build for another TensorFlow, which must have a folder in third_party/tensorflow",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "make",
        parents=[common, python, flavour],
        help="build the wheel, unless it is already up to date",
    )
    command.add_argument("--out", type=Path, help="directory for the wheel (default: wheels)")
    command.add_argument(
        "--jobs", type=int, help="number of parallel compiler processes (default: cores, at most 4)"
    )
    command.set_defaults(run=_make)

    command = commands.add_parser(
        "release",
        parents=[common, flavour],
        help="build the wheels for every Python, with SHA256SUMS and provenance.json",
    )
    command.add_argument("--out", type=Path, help="directory for the wheels (default: wheels)")
    command.add_argument("--jobs", type=int, help="as for make")
    command.set_defaults(run=_release)

    command = commands.add_parser(
        "verify",
        parents=[common],
        help="compare a wheel with the official one: list what it adds and changes",
    )
    command.add_argument("wheels", type=Path, metavar="WHEEL", nargs="+")
    # The wheel's name says which flavour and version it is.
    command.set_defaults(run=_verify, flavour=CPU, tensorflow=None)

    command = commands.add_parser(
        "compat", parents=[common, python], help="list what breaks with another TensorFlow"
    )
    command.add_argument("what", metavar="VERSION|WHEEL", help="a version, or an official wheel")
    command.add_argument(
        "--no-build",
        dest="build",
        action="store_false",
        help="skip the C++ and the tests, which take most of the time",
    )
    command.set_defaults(run=_compat)

    command = commands.add_parser(
        "unpack",
        parents=[common, python, flavour],
        help="create a git tree of the official Python files, with one commit per patch, to edit",
    )
    command.add_argument("directory", type=Path, metavar="DIR")
    command.set_defaults(run=_unpack)

    command = commands.add_parser(
        "refresh",
        parents=[common, python, flavour],
        help="rewrite the patches for the pinned TensorFlow, or from an unpacked tree's commits",
    )
    command.add_argument("--from", dest="directory", type=Path, metavar="DIR")
    command.set_defaults(run=_refresh)
    return parser
