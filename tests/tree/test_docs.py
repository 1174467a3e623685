"""The documents match the code: lines, links, paths, names and figures."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from extras import load_config

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "tensorflow_patches"
DOCS = ROOT / "docs"
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in ROOT.rglob("*.md")
    if not any(part[0] == "." or part == "results" for part in page.relative_to(ROOT).parts)
)
# Former parameters that the changelog and measurements may name.
GONE = {"TF_MPI_DENSE_UPDATE", "TF_MPI_MEMORY", "TF_MPI_SPARSE_UPDATE", "TF_MPI_STORES"}
_PATH = re.compile(r"(?:[\w.+-]+/)+[\w.+-]*")
# Created by building, running or installing.
_NOT_IN_THE_TREE = re.compile(
    r"\.venv/|\.cache/|wheels/|benchmarks/results/|logs/|tensorflow/|xla/|/|~/|site-packages/"
)


def _text(page: str) -> str:
    return (ROOT / page).read_text()


def _prose(page: str) -> str:
    """The page without code blocks, which hold commands or their output."""
    text = re.sub(r"^```.*?^```$", "", _text(page), flags=re.S | re.M)
    return re.sub(r"^ {4,}.*$", "", text, flags=re.M)


def _quoted(page: str) -> list[str]:
    """The names in backquotes."""
    return [" ".join(name.split()) for name in re.findall(r"`([^`]+)`", _prose(page))]


def _exists(path: str) -> bool:
    return any((base / path).exists() for base in (ROOT, PRODUCT))


def test_parameters_md_is_printed_from_the_registry() -> None:
    config = load_config()
    text = _text("docs/parameters.md")
    assert text.endswith(config.describe() + "\n"), "print it: python -m tensorflow.mpi config"


def test_the_documented_fusion_threshold_is_the_engines() -> None:
    default = load_config().get("TF_MPI_FUSION_THRESHOLD", {})
    assert (
        f"kFusionBytes = size_t{{{default >> 20}}} << 20;"
        in (PRODUCT / "core/base/sizes.h").read_text()
    )


@pytest.mark.parametrize("page", [*PAGES, "INSTALL.txt"])
def test_lines_are_under_100_characters(page: str) -> None:
    """Except for rows of the tables in measurements, which cannot be broken."""
    is_measurement = page.startswith("docs/measurements/")
    long = [
        f"{page}:{number}"
        for number, line in enumerate(_text(page).splitlines(), 1)
        if len(line) >= 100 and not (is_measurement and line.startswith("|"))
    ]
    assert not long


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_existing_files(page: str) -> None:
    text = _prose(page)
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    by_name = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.M))
    assert not [t for t in [*targets, *by_name.values()] if not ((ROOT / page).parent / t).exists()]
    used = re.findall(r"\[(\d+)\](?![(:])", text)
    assert set(used) == set(by_name)


def _anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub creates them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_anchors_are_headings(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", _prose(page)):
        linked = (ROOT / page).parent / target if target else ROOT / page
        assert anchor in _anchors(linked), f"{page}: {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_quoted_paths_exist_in_the_tree(page: str) -> None:
    paths = [name for name in _quoted(page) if _PATH.fullmatch(name)]
    named = [path for path in paths if not _NOT_IN_THE_TREE.match(path)]
    assert not [path for path in named if not _exists(path)]


@pytest.mark.parametrize("page", PAGES)
def test_quoted_variables_are_parameters(page: str) -> None:
    known = re.findall(r"^### `(\w+)`$", _text("docs/parameters.md"), re.M)
    named = set(re.findall(r"\bTF_MPI_[A-Z_]+[A-Z]\b", _text(page)))
    is_history = page in ("CHANGELOG.md", "docs/parameters.md") or page.startswith(
        "docs/measurements/"
    )
    gone = {*GONE, *load_config().OLD_NAMES} if is_history else set()
    assert named <= set(known) | gone


def _glossary() -> set[str]:
    """The terms that the glossary explains, and the names in its explanations."""
    text = _text("docs/glossary.md")
    terms = {" ".join(term.split()) for term in re.findall(r"\*\*([^*]+)\*\*", text)}
    return terms | set(_quoted("docs/glossary.md"))


def test_every_name_in_the_architecture_is_a_file_or_in_the_glossary() -> None:
    """A newcomer who reads docs/architecture.md can look up each name in it."""
    page = "docs/architecture.md"
    known = _glossary()
    unknown = [name for name in _quoted(page) if not _exists(name) and name not in known]
    prose = re.sub(r"`[^`]+`|\]\([^)]+\)", "", _prose(page))
    names = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w*|\b[a-z]+_[a-z_]+\b", prose)) - {"TensorFlow"}
    unknown += [name for name in names if name not in _text("docs/glossary.md")]
    assert not unknown


def test_class_names_in_the_glossary_exist_in_the_code() -> None:
    code = "".join(
        path.read_text() for path in sorted(PRODUCT.rglob("*")) if path.suffix in (".h", ".py")
    )
    names = [n for n in _quoted("docs/glossary.md") if re.fullmatch(r"k?[A-Z][a-z]+\w*", n)]
    assert len(names) > 15
    assert not [n for n in names if not re.search(rf"\b(class|struct)\b.*\b{n}\b|\b{n}[,;=]", code)]


def test_each_assumption_names_its_file_and_its_test() -> None:
    text = _text("docs/tensorflow-internals.md")
    found = re.findall(r"^- (.+?)(?=\n\n|\n- |\n*\Z)", text, re.M | re.S)
    entries = [" ".join(entry.split()) for entry in found]
    assert len(entries) > 40
    for entry in entries:
        file, test = re.search(r" File: (.*?) Test: (.*)$", entry).groups()  # type: ignore[union-attr]
        assert re.search(r"`[\w./-]+`", file), entry
        assert re.search(r"`tests/[\w./]+`|no test|[Ll]inker", test), entry


def test_decisions_have_all_sections_and_are_short() -> None:
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    index = _text("docs/decisions/README.md")
    assert len({page.name[:3] for page in pages}) == len(pages)
    for page in pages:
        text = page.read_text()
        assert page.name in index
        assert len(text.splitlines()) <= 60, page.name
        assert "**Context.**" in text, page.name
        if "Taken out" not in text.splitlines()[0]:
            for part in ("Options", "Decision", "Evidence", "Price"):
                assert f"**{part}.**" in text, f"{page.name}: no {part}"


def test_measurements_are_dated_and_listed() -> None:
    index = _text("docs/measurements/README.md")
    for page in sorted((DOCS / "measurements").iterdir()):
        if page.name != "README.md":
            assert re.match(r"20\d\d-\d\d-\d\d-", page.name)
            assert page.name in index


def test_the_chart_shows_the_table() -> None:
    """`python -m benchmarks.chart` makes it; each bar is labelled with its share."""
    newest = max((DOCS / "measurements").glob("*-shares.csv"))
    with newest.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["column"] != "independent:2"]
    labels = re.findall(r">(\d\.\d\d)</text>", _text("docs/shares.svg"))
    assert sorted(labels) == sorted(f"{float(row['share']):.2f}" for row in rows)
