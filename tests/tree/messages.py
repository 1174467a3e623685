"""Writes docs/messages.md, all messages of the product, from the strings in its source.

    python tests/tree/messages.py

Each text in the source is a line that is printed, an error, or a part of one of these. tests()
finds the test of a message by its words.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "tensorflow_patches"
PAGE = ROOT / "docs" / "messages.md"
_HEAD = """\
# Every message

All lines and errors of this wheel and of `install.sh`, by subject and by the source file that
contains them, each with a test that looks for its words. `python tests/tree/messages.py` writes
this page from the source.

- **Line**: printed on stderr after `tensorflow.mpi rank R/N:`. **Line, once**: at most once in a
  run; by rank 0, or by each rank whose text differs.
- **Printed**: without that prefix. **Part**: text that other messages of the same file contain.
- Everything else is an error, listed by its type; errors of the engine are `tf.errors`.
- Braces mark what is filled in. The next step for the user is in the message itself.
"""
INTERNAL = "Internal errors"
_SUBJECTS = {  # by folder or file below tensorflow_patches; the first match counts
    "Installation": r"install\.sh|build/|python/(installation|at_start)|interpose/",
    "Start and settings": r"python/config/|python/_src/(bootstrap|lifecycle/(?!ends)|mpi|launch|"
    r"runtime|random/host)|core/transport/|glue/(c_api|runtime)/",
    "The end, and ranks that fail": r"lifecycle/ends|python/_src/presence/|core/(engine|recovery)/",
    "Ranks that do not take the same steps": r"core/agreement/|python/_src/keras/(program|describe|"
    r"calls)|python/_src/messaging",
    "Data": r"python/_src/(data|readers)/|python/data",
    "Whole batches, losses and metrics": r"python/_src/(global_batch|keras|tf_keras)/",
    "Files": r"python/_src/files/",
    "GPUs": r"core/(gpu|device)/|python/_src/gpu/",
    "Scripts for Horovod and DDL": r"/(horovod|ddl)",
    "The doctor, bench and statistics": r"doctor|/(observability|bench)/",
    "Gradients and variables": r"python/_src/|core/|glue/",
    "tf.mpi": r"",
}
_ORDER = [*_SUBJECTS, INTERNAL]
_MIN_LETTERS = 10  # of a piece of text that a test must share with a message
_INTERNAL_KINDS = {"InternalError", "CancelledError"}  # codes for errors that no script can cause


class Message(NamedTuple):
    text: str  # placeholders are {names}
    kind: str
    file: str

    @property
    def subject(self) -> str:
        if self.kind in _INTERNAL_KINDS:
            return INTERNAL
        found = (name for name, files in _SUBJECTS.items() if re.search(files, self.file))
        return next(found)


_PREFIX = r"^tensorflow\.mpi rank \S+: "  # of lines


def _is_prose(text: str, least: int) -> bool:
    """Whether the text has at least that many words, and is neither a key nor code."""
    words = re.findall(
        r"(?:^|(?<=[ (]))[A-Za-z][a-z']*(?=$|[ ,;:.)/])",
        re.sub(r"\{.*?\}", "-", re.sub(_PREFIX, "", text)),
    )
    return len(words) >= least and not re.search(
        r'\\|^\{?"|[a-z]\.[a-z]\d\d |\b\w+: (T|bool)\b', text
    )


# --- Python --------------------------------------------------------------------------------------

# The kind of message by the function that prints it.
_SAYS = {"say": "Line", "once": "Line, once", "debug": "Line, with TF_MPI_LOG_LEVEL=debug",
         "print": "Printed", "warn": "Warning"}  # fmt: skip
_COMPOSES = re.compile(r"append|extend|join|Why|Gate|assert_\w+")  # calls that compose a text
# Files whose texts are on another generated page, or only for tests.
_EXCLUDED = re.compile(
    r"python/(config/(parameters?|values)\.py|_src/replaced/)|core/transport/local"
)


def _name(node: ast.AST) -> str:
    """The name of a placeholder: the last name in the expression."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").lower()
        case ast.Call(func=func, args=[*_, last]) if _name(func) in (
            "join",
            "map",
            "str",
            "sorted",
        ):
            return _name(last)
        case ast.Call(func=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _name(inner)
        case ast.BinOp(left=inner) | ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner):
            return _name(inner)
        case ast.IfExp(body=body, orelse=other):
            texts = [re.sub(r"[{}]", "", _text(one) or _name(one)) for one in (body, other)]
            return "|".join(filter(None, texts))
    return "…"


def _text(node: ast.AST) -> str | None:
    """The text of a string literal; None for any other expression."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(_text(part) or "" for part in values)
        case ast.FormattedValue(value=value):
            return "{" + _name(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = [_text(left), _text(right)]
            if texts != [None, None]:
                parts = zip(texts, (left, right))
                return "".join(f"{{{_name(n)}}}" if t is None else t for t, n in parts)
    return None


def _of_python(path: Path, file: str) -> Iterator[Message]:
    def visit(node: ast.AST, kind: str) -> Iterator[Message]:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.keyword(arg="key"):
                return
            case ast.ClassDef(bases=[ast.Attribute(attr="Enum")]):
                return  # documentation for readers of the code
            case ast.Assign(targets=[ast.Name(id="label" | "_LABEL")]):
                return  # the name of an exchange between ranks
            case ast.Raise(exc=ast.Call(func=func)):
                kind = ast.unparse(func).split(".")[-1].replace("error_from_code", "Error")
            case ast.stmt():
                kind = "Part"
            case ast.Call(func=func):
                called = func.attr if isinstance(func, ast.Attribute) else ast.unparse(func)
                if called == "once":
                    node = ast.Call(func, node.args[:1], [])
                if called in _SAYS:
                    kind = _SAYS[called]
                elif re.search(r"Error$|Warning$", called):
                    kind = called
                elif kind == "Part" and not _COMPOSES.fullmatch(called):
                    kind = ""
        if (text := _text(node)) is not None:
            if kind and _is_prose(text, 3 if kind == "Part" else 2):
                yield Message(" ".join(text.split()), kind, file)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, kind)

    yield from visit(ast.parse(path.read_text()), "Part")


# --- C++ and Bash --------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|^\s*\#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\])'|\w+|::|\S""",
    re.S | re.M,
)
_NO_NAME = {"std", "string", "to_string", "c_str", "static_cast", "message", "int", "Name", "absl"}
# In statements with ops, with names of spans in traces, or with messages of the compiler.
_NO_MESSAGE = {"Input", "Output", "Attr", "HostMemory", "REGISTER_OP", "Span", "Complete",
               "static_assert"}  # fmt: skip


def _statements(path: Path) -> Iterator[list[str]]:
    statement: list[str] = []
    for token in _TOKEN.findall(path.read_text()):
        if token in ("{", "}", ";"):
            yield statement
            statement = []
        elif not token.lstrip().startswith(("//", "/*", "#")):
            statement.append(token)


def _joined(statement: Iterable[str]) -> str:
    """The text from its first string to its last, with names for the expressions between them."""
    text, between = "", [""]
    for token in statement:
        if not token.startswith('"'):
            between.append(token)
            continue
        names = [one for one in between if re.match(r"[A-Za-z]", one) and one not in _NO_NAME]
        if text and names:
            text += "{" + names[-1].strip("_") + "}"
        elif text and {":", ","} & {*between}:
            text += "|"
        text, between = text + token[1:-1], []
    return text.replace('\\"', '"').replace("\\n", " ")


def _of_cpp(path: Path, file: str) -> Iterator[Message]:
    for statement in _statements(path):
        text = _joined(statement)
        code = re.search(
            r"\bCode :: k(\w+)|\babsl :: (\w+)Error \(|\berrors :: (\w+) \(", " ".join(statement)
        )
        if code is not None:
            kind = f"{code[code.lastindex or 0]}Error"
        else:
            kind = "Line" if {"Log", "log", "log_", "fprintf"} & {*statement} else "Part"
        if not _NO_MESSAGE & {*statement} and _is_prose(text, 3 if kind == "Part" else 2):
            yield Message(" ".join(text.split()), kind, file)


def _of_bash(path: Path, file: str) -> Iterator[Message]:
    for text, _, step in re.findall(
        r'\bdie "((?:\$\([^)]*\)|[^"])+)"((?:\s*\\\n)? +"([^"]+)")?', path.read_text()
    ):
        text = re.sub(
            r"\$\{?(\w+|[*@])(?:[^}\s]*\})?|\$\([^)]*\)",
            lambda m: f"{{{m[1] or '…'}}}",
            text + f"; next: {step}" * bool(step),
        )
        yield Message(text, "Ends install.sh", file)


READERS = {".py": _of_python, ".cc": _of_cpp, ".h": _of_cpp, ".sh": _of_bash}


@cache
def messages() -> list[Message]:
    found: dict[Message, None] = {}
    for top in (ROOT / "install.sh", ROOT / "build" / "install", PRODUCT):
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            file = str(path.relative_to(PRODUCT if top == PRODUCT else ROOT))
            if path.suffix in READERS and not _EXCLUDED.match(file):
                found.update(dict.fromkeys(READERS[path.suffix](path, file)))
    return list(found)


# --- Tests ---------------------------------------------------------------------------------------


_FILLED = re.compile(
    r"(?<=')[^' ]+(?=')|\{[^{}]*\}|\\d[+*]?|\[[^\]]*\][+*]|\b\d+(?:\.\d+)*\b|%\.?\d*[a-z]+"
)
_GAP = re.compile(r"\\[swSW][+*]?|\.[+*]\??|\n|\|")


def _pieces(text: str) -> list[str]:
    """The literal parts of a text or of a test's pattern, between placeholders."""
    text = re.sub(r"'?\{\}'?", "{}", _FILLED.sub("{}", text)).replace("(?:", "")
    text = re.sub(r"\\?[()]|(?<=\{\}) s\b", "", text)
    pieces = re.sub(r"\\(.)", r"\1", _GAP.sub("\n", text)).splitlines()
    pieces = [" ".join(piece.replace("{}{}", "{}").split()).strip("{}, ") for piece in pieces]
    return [piece for piece in pieces if len(piece) >= _MIN_LETTERS and " " in piece]


def _fours(piece: str) -> set[str]:
    """All sequences of four words, at most one of them a placeholder."""
    words = piece.split()
    fours = [words[i : i + 4] for i in range(len(words) - 3)]
    return {" ".join(four) for four in fours if sum("{}" in word for word in four) < 2}


@cache
def _strings() -> dict[str, list[str]]:
    """The strings of each test, including the scripts that it runs."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        file = str(path.relative_to(ROOT))
        texts: list[str] = []
        if re.search(r"_test\.cc$|/recovery/lives\.cc$", file):
            texts = [_joined(statement) for statement in _statements(path)]
        elif re.search(r"(?<!tree)/test_\w+\.py$|tests/tf/\w+/\w+\.py$", file):
            nodes = [*ast.walk(ast.parse(path.read_text()))]
            docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            texts = [_text(node) or "" for node in nodes if id(node) not in docs]
        found[file] = [*dict.fromkeys(texts)]
    return found


@cache
def _tested_pieces() -> dict[str, list[str]]:
    """The pieces of the strings of each test."""
    return {
        file: [*dict.fromkeys(piece for text in texts for piece in _pieces(text))]
        for file, texts in _strings().items()
    }


def _filled_in(message: Message) -> str:
    """The test with a string that contains the whole message, with its placeholders filled in."""
    literals = re.split(r"\{.*?\}", message.text)
    letters = sum(char.isalpha() for char in "".join(literals))
    if len(literals) == 1 or letters < _MIN_LETTERS:
        return ""
    whole = re.compile(".*".join(map(re.escape, literals)))
    longest = max(literals, key=len)
    for file, texts in _strings().items():
        for text in texts:
            plain = re.sub(r"\\(.)", r"\1", text.replace("\n  next: ", "; next: "))
            plain = " ".join(plain.split())
            if longest in plain and whole.search(plain):
                return file
    return ""


def _clauses(piece: str) -> set[str]:
    """The piece, and its clauses between placeholders and stops."""
    clauses = (clause.strip(" .,:;") for clause in re.split(r"\{\}|[.;:] ", piece))
    return {piece, *(clause for clause in clauses if len(clause) >= _MIN_LETTERS)}


@cache
def tests() -> dict[Message, str]:
    """The test that matches most of each message; "" if there is none.

    A test matches a message if one of its strings is part of the message, or contains a clause of
    it, or if both have four words in a row. The words must belong to one message, or to one of the
    test's own room or of the file that the test is named after. A string that contains the whole
    message, filled in, matches it, too.
    """
    pieces = {message: _pieces(message.text) for message in messages()}
    joined = {message: "\n".join(some) for message, some in pieces.items()}
    everything = "\n".join(joined.values())
    clauses = {m: set().union(*map(_clauses, some)) for m, some in pieces.items()}
    every_clause = set().union(*clauses.values())
    fours = set().union(*(_fours(piece) for some in pieces.values() for piece in some))
    matched: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def note(words: str, file: str) -> None:
        found = {message.text: message.file for message in messages() if words in joined[message]}
        if len(found) > 1:
            *_, folder, name = file.split("/")
            room = "install" if name.startswith("test_install") else f"/{folder}/"
            own = "/" + re.sub(r"^test_|_test", "", name)
            found = {text: src for text, src in found.items() if room in src or own in src}
        found = found if len(found) == 1 else {}
        if words.count(" ") > 2:  # a clause of four words is enough for all messages that have it
            found |= {message.text: "" for message, some in clauses.items() if words in some}
        for text in found:
            matched[text][file] += len(words)

    for file, tested in _tested_pieces().items():
        of_file = "\n".join(tested)
        words = {piece for piece in tested if piece in everything}
        words |= fours & set().union(*map(_fours, tested))
        words |= {clause for clause in every_clause if clause in of_file}
        for one in words:
            note(one, file)
    return {
        message: max(matched[message.text], key=lambda f: matched[message.text][f], default="")
        or _filled_in(message)
        for message in messages()
    }


# --- The page ------------------------------------------------------------------------------------


def page() -> str:
    lines = [_HEAD]
    for subject in _ORDER:
        of_subject = [message for message in messages() if message.subject == subject]
        lines.append(f"## {subject}\n")
        if subject == INTERNAL:
            lines.append(
                "Bugs of this wheel, or a faulty machine or network: please report them.\n"
            )
        for file in dict.fromkeys(message.file for message in of_subject):
            lines.append(f"`{file}`\n")
            for message in of_subject:
                if message.file == file:
                    ticks = "``" if "`" in message.text else "`"
                    test = f"`{tests()[message]}`" if tests()[message] else "no test"
                    entry = f"- {message.kind}, {test}: {ticks}{message.text}{ticks}"
                    lines += textwrap.wrap(
                        entry, 98, subsequent_indent="  ", break_on_hyphens=False
                    )
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    untested = [message for message in messages() if not tests()[message]]
    print(f"{len(messages())} messages, {len(untested)} without a test")
