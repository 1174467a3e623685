"""What a shared library needs, exports and says of itself."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import BuildError
from ..layout import Library

# TensorFlow's symbols that we define, see docs/tensorflow-internals.md; else only our C API.
INTERPOSED = (
    "_ZN10tensorflow14kernel_factory17OpKernelRegistrar12InitInternalE",
    "_ZN3tsl4port13AlignedMallocE",
    "_ZN3tsl4port11AlignedFreeE",
    "_ZN3tsl4port16AlignedSizedFreeE",
    "_ZNK10tensorflow15TensorInterface7CanMoveE",
    "_ZN10tensorflow4data5model5Model12OptimizeLoopE",
)
OUR_PREFIX = "tfmpi_"

# library -> the symbol versions wanted of it, as auditwheel's policies take them.
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
                value = {"DT_NEEDED": "needed", "DT_SONAME": "soname"}.get(name)
                value = value or {"DT_RUNPATH": "runpath", "DT_RPATH": "rpath"}.get(name)
                if value:
                    tags[name].append(str(getattr(tag, value)))
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
    """Refuses a library of ours that would not load in the wheel, or not leave TensorFlow alone."""
    with path.open("rb") as stream:
        dynamic = read_dynamic(stream)
    strange = [name for name in dynamic.exports if not name.startswith((*INTERPOSED, OUR_PREFIX))]
    missing = [name for name in library.needs if name not in dynamic.needed]
    data = path.read_bytes()
    fault = None
    if strange:
        fault = f"exports {strange[0]} ({len(strange)} in all), which its export map must hide"
    elif not dynamic.exports:
        fault = "exports nothing: see its export map"
    elif missing:
        fault = f"is not linked with {missing[0]}"
    elif dynamic.runpath != (library.runpath,) or dynamic.rpath:
        fault = f"has RUNPATH {':'.join(dynamic.runpath + dynamic.rpath)}, not {library.runpath}"
    elif dynamic.soname != library.name:
        fault = f"calls itself {dynamic.soname}"
    elif any(path in data for path in forbidden):
        fault = "holds a path of this machine, so no other machine could build the same bytes"
    if fault:
        raise BuildError(f"{library.name} {fault}: correct its BUILD.bazel")
