"""The shape of the program: who may import whom, what pure code may touch, and what code may not know."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfdock

ROOT = Path(tfdock.__file__).parent
MODULES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}

# Ring -> the rings it may import; each may import itself.
RINGS = {
    "words": set[str](),
    "read": {"words"},
    "decide": {"words", "read", "inspect"},
    "inspect": {"words"},
    "do": {"words", "read", "decide", "inspect"},
    "talk": {"words", "read", "decide", "inspect", "do"},
}
PURE = {"words", "read", "decide", "inspect"}

# Package -> the modules or folders that may import it.
HOMES = {
    "ahocorasick_rs": ("inspect/diagnose.py",),
    "auditwheel": ("do/manylinux.py",),
    "docker": ("do/engine/", "do/registry/credentials.py"),
    "requests": ("do/engine/docker.py", "do/engine/streams.py"),
    "urllib3": ("do/engine/docker.py",),
    "tenacity": ("do/engine/docker.py", "do/registry/web.py"),
    "filelock": ("do/",),
    "platformdirs": ("do/settings.py",),
    "jinja2": ("decide/render.py", "talk/report.py"),
    "yaml": ("read/yamldoc.py",),
    "pydantic": ("read/",),
    "pydantic_core": ("read/",),
    "packaging": ("inspect/", "do/"),
    "h2": ("do/remote/relay_grpc.py",),
    "hpack": ("do/remote/relay_grpc.py",),
    "isal": ("inspect/archive.py",),
    "lz4": ("inspect/fatbin.py",),
    "stringzilla": ("inspect/",),
    "tornado": ("do/wheelhouse/serving.py",),
    "zstandard": ("inspect/fatbin.py", "inspect/offload.py", "inspect/packs.py"),
    "typer": ("talk/",),
    "rich": ("talk/",),
}


def ring(module: str) -> str:
    """The ring of `read/profile.py`; what stands at the top is the vocabulary, `__main__` talks."""
    if "/" in module:
        return module.partition("/")[0]
    return "talk" if module == "__main__.py" else "words"


def imports(tree: ast.AST) -> Iterator[str]:
    """Every imported module's dotted name, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports here are absolute"
            assert node.module
            yield node.module
            # `from tfdock.read import yamldoc` imports a module.
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("tfdock"))


def ring_of_import(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "tfdock" or len(parts) == 1:
        return None
    return parts[1] if parts[1] in RINGS else "words"


def test_every_module_stands_in_a_known_ring() -> None:
    assert {ring(module) for module in MODULES} == set(RINGS)
    assert {module for module in MODULES if ring(module) == "words"} == {"__init__.py", "errors.py", "model.py"}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_ring_imports_an_outer_one(module: str) -> None:
    own = ring(module)
    found = {target for name in imports(MODULES[module]) if (target := ring_of_import(name))}
    assert found <= RINGS[own] | {own}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_third_party_packages_are_imported_where_they_live(module: str) -> None:
    packages = {name.partition(".")[0] for name in imports(MODULES[module])} - sys.stdlib_module_names - {"tfdock"}
    homeless = {package for package in packages if not module.startswith(HOMES.get(package, ()))}
    assert homeless == set()


def test_the_homes_of_packages_are_no_longer_than_they_need_be() -> None:
    used = {name.partition(".")[0] for tree in MODULES.values() for name in imports(tree)}
    assert set(HOMES) <= used


# --- pure rings -----------------------------------------------------------------------------------------------------

OUTSIDE_MODULES = {
    "asyncio", "concurrent", "getpass", "glob", "http", "locale", "logging", "multiprocessing", "os", "pathlib",
    "platform", "random", "secrets", "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib", "uuid",
}  # fmt: skip
HOME_OF_THREADS = "inspect/pair.py"
OUTSIDE_NAMES = {"open", "input", "print", "Path", "environ", "getenv", "exec", "eval", "__import__"}
CLOCKS = {"now", "today", "utcnow"}


@pytest.mark.parametrize("module", sorted(module for module in MODULES if ring(module) in PURE))
def test_pure_code_touches_no_environment_clock_process_or_network(module: str) -> None:
    tree = MODULES[module]
    allowed = {"concurrent", "threading"} if module == HOME_OF_THREADS else set()
    assert {name.partition(".")[0] for name in imports(tree)} & OUTSIDE_MODULES == allowed
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert names & OUTSIDE_NAMES == set()
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert attributes & (CLOCKS | {"read_text", "write_text", "read_bytes", "write_bytes"}) == set()


# --- what deciding may not know -------------------------------------------------------------------------------------

DECIDING = sorted(module for module in MODULES if ring(module) == "decide")
VENDORS = re.compile(r"cuda|cudnn|nvidia|rocm|amd|radeon|geforce|hip", re.IGNORECASE)
VERSION = re.compile(r"\d+\.\d+")


def conditions(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything that code branches on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.Match):
            yield node.subject
            for case in node.cases:
                yield case.pattern
                yield from [case.guard] if case.guard else []
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Compare | ast.BoolOp):
            yield node


def words(node: ast.AST) -> Iterator[str]:
    """The names and texts of an expression."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str | float):
            yield str(inner.value)
        elif isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


@pytest.mark.parametrize("module", DECIDING)
def test_no_decision_depends_on_a_vendor(module: str) -> None:
    found = {word for node in conditions(MODULES[module]) for word in words(node) if VENDORS.search(word)}
    assert found == set()


@pytest.mark.parametrize("module", DECIDING)
def test_no_decision_depends_on_a_version_number(module: str) -> None:
    found = {word for node in conditions(MODULES[module]) for word in words(node) if VERSION.search(word)}
    assert found == set()


def test_the_scan_finds_what_it_is_for() -> None:
    for line in (
        "if name == 'cuda': pass",
        "x = 1 if cuda_path else 2",
        "[a for a in b if a.rocm]",
        "assert x in ('amd',)",
    ):
        assert any(VENDORS.search(word) for node in conditions(ast.parse(line)) for word in words(node)), line
    for line in (
        "if version >= '2.18': pass",
        "x = v in {'9.0'}",
        "match v:\n  case '1.4': pass",
        "if v > 2.3: pass",
    ):
        assert any(VERSION.search(word) for node in conditions(ast.parse(line)) for word in words(node)), line


# --- speed ----------------------------------------------------------------------------------------------------------


def test_the_command_line_is_there_before_anything_heavy_is() -> None:
    program = "import json, sys, tfdock.talk.cli; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(result.stdout)}
    assert "typer" in loaded
    assert loaded & {"docker", "jinja2", "pydantic", "requests", "rich", "tenacity", "yaml"} == set()
