"""Reads what a shared library needs and exports, and checks ours."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import BuildError
from ..layout import Library

# TensorFlow's symbols that our library defines (docs/tensorflow-internals.md). Apart from these it
# exports only our C API.
INTERPOSED = (
    "_ZN10tensorflow14kernel_factory17OpKernelRegistrar12InitInternalE",
    "_ZN3tsl4port13AlignedMallocE",
    "_ZN3tsl4port11AlignedFreeE",
    "_ZN3tsl4port16AlignedSizedFreeE",
    "_ZNK10tensorflow15TensorInterface7CanMoveE",
    "_ZN10tensorflow4data5model5Model12OptimizeLoopE",
    "_ZN10tensorflow16GetXLARandomSeedE",
)
OUR_PREFIX = "tfmpi_"

# library -> the symbol versions needed from it, in the form that auditwheel's policies expect.
Versions = dict[str, set[str]]


@dataclass(frozen=True)
class Dynamic:
    soname: str
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    rpath: tuple[str, ...]
    exports: tuple[str, ...]


def symbol_versions(stream: BinaryIO) -> Versions:
    """The versioned symbols that an ELF file needs, by library."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    found: dict[str, set[str]] = defaultdict(set)
    for section in ELFFile(stream).iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for library, versions in section.iter_versions():
                names = {str(version.name) for version in versions}
                found[str(library.name)] |= names
    return dict(found)


def read_dynamic(stream: BinaryIO) -> Dynamic:
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(stream)
    tags: dict[str, list[str]] = defaultdict(list)
    exports: list[str] = []
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                name = str(tag.entry.d_tag)
                if name in ("DT_NEEDED", "DT_SONAME", "DT_RUNPATH", "DT_RPATH"):
                    tags[name].append(str(getattr(tag, name.removeprefix("DT_").lower())))
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            exports = [
                symbol.name
                for symbol in section.iter_symbols()
                if symbol["st_shndx"] != "SHN_UNDEF"
                and symbol["st_info"]["bind"] != "STB_LOCAL"
                and symbol["st_info"]["type"] != "STT_FILE"
            ]
    return Dynamic(
        soname="".join(tags["DT_SONAME"]),
        needed=tuple(tags["DT_NEEDED"]),
        runpath=tuple(":".join(tags["DT_RUNPATH"]).split(":")),
        rpath=tuple(tags["DT_RPATH"]),
        exports=tuple(sorted(exports)),
    )


def check_library(path: Path, library: Library, forbidden: list[bytes]) -> None:
    """Raises BuildError for a library that would not load in the wheel, or exports too much."""
    with path.open("rb") as stream:
        dynamic = read_dynamic(stream)
    strange = [name for name in dynamic.exports if not name.startswith((*INTERPOSED, OUR_PREFIX))]
    missing = [name for name in library.needs if name not in dynamic.needed]
    data = path.read_bytes()
    fault = None
    if strange:
        fault = f"exports {strange[0]} ({len(strange)} in total), which its export map must hide"
    elif not dynamic.exports:
        fault = "exports nothing: check its export map"
    elif missing:
        fault = f"is not linked with {missing[0]}"
    elif dynamic.runpath != (library.runpath,) or dynamic.rpath:
        fault = f"has RUNPATH {':'.join(dynamic.runpath + dynamic.rpath)}, not {library.runpath}"
    elif dynamic.soname != library.name:
        fault = f"has SONAME {dynamic.soname}"
    elif any(path in data for path in forbidden):
        fault = "contains a path of this machine, so the build is not reproducible elsewhere"
    if fault:
        raise BuildError(f"{library.name} {fault}: correct its BUILD.bazel")
