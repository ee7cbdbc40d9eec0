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


# --- folders of containers ------------------------------------------------------------------------------------------

# What opens folders that others can write to: it collects results, or reads Bazel's caches or a repository.
OPENERS = (
    "do/beneath.py",
    "do/results.py",
    "do/cache/",
    "do/project_files.py",
    "do/source.py",
    "do/pipelines.py",
    "do/matrix_history.py",
)
# What looks at the sources of mounts: it creates containers, or is an engine.
CARRIERS = {"do/engine/carrier.py", "do/engine/containers.py", "do/engine/fake.py", "do/results.py"}
# What creates containers: `build/image.py` creates one without mounts.
CREATORS = {"do/engine/carrier.py", "do/build/image.py"}
# What names the folders above those of containers.
ABOVE = {
    "do/cache/__init__.py", "do/results.py", "do/workspace.py", "do/wheelhouse/leftovers.py", "do/verify/bench.py"
}  # fmt: skip
CHILDREN = {"output", "staging"}
PATHS = {"Path", "PurePath", "open", "joinpath", "with_name", "join", "fspath", "resolve"}


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def second_ways(module: str, tree: ast.AST) -> Iterator[str]:
    """Every place where a module takes the path of a container's folder, or opens one, past `do/results.py`."""
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            said = _attribute_way(module, node, above)
        elif isinstance(node, ast.Constant):
            named = node.value in CHILDREN and module not in ABOVE and _is_path(node, above)
            said = "a folder of containers is named" if named else ""
        else:
            said = _call_way(module, node) if isinstance(node, ast.Call) else ""
        if said:
            yield f"{module}:{node.lineno}: {said}"  # type: ignore[attr-defined]
    if "tfdock.do.beneath.Beneath" in imports(tree) and not module.startswith(OPENERS):
        yield f"{module}: a folder of containers is opened"


def _attribute_way(module: str, node: ast.Attribute, above: dict[ast.AST, ast.AST]) -> str:
    if node.attr == "mount_source" and not _is_mounted(node, above):
        return "the path of a container's folder is used for something else than a mount"
    if node.attr == "_written" and getattr(node.value, "id", "") != "self":
        return "the path of a container's folder is taken out"
    if node.attr == "source" and module not in CARRIERS and _is_path(node, above):
        return "the source of a mount is used as a path"
    return ""


def _call_way(module: str, node: ast.Call) -> str:
    if called(node) != "create" or module in CREATORS or not isinstance(node.func, ast.Attribute):
        return ""
    engine = "engine" in ast.unparse(node.func.value).split(".")
    return "a container is created past the check of its mounts" if engine else ""


def _is_mounted(node: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Whether a value is the source of a mount, or what stands for it in a plan."""
    parent = above[node]
    return isinstance(parent, ast.Dict) or (
        isinstance(parent, ast.keyword)
        and parent.arg == "source"
        and isinstance(above[parent], ast.Call)
        and called(above[parent]) in ("Mount", "replace")  # type: ignore[arg-type]
    )


def _is_path(node: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Whether a value is made a path, or a part of one."""
    parent = above.get(node)
    if isinstance(parent, ast.BinOp | ast.FormattedValue):
        return not isinstance(parent, ast.BinOp) or isinstance(parent.op, ast.Div | ast.Add)
    if not isinstance(parent, ast.Call) or node is parent.func:
        return False
    owner = parent.func.value if isinstance(parent.func, ast.Attribute) else None
    return called(parent) in PATHS or getattr(owner, "id", "") in ("os", "shutil")


@pytest.mark.parametrize("module", sorted(module for module in MODULES if ring(module) == "do"))
def test_results_leave_a_container_in_one_way(module: str) -> None:
    assert list(second_ways(module, MODULES[module])) == []


def test_the_scan_finds_who_takes_a_second_way() -> None:
    for line in (
        "folder = Path(run.folders.output.mount_source) / 'verify'",
        "open(run.folders.staging.make().mount_source + '/done')",
        "text = f'{run.folders.staging.mount_source}/done'",
        "source = made.mount_source",
        "os.walk(run.folders.output._written)",
        "shutil.rmtree(spec.mounts[0].source)",
        "Path(mount.source).mkdir()",
        "bench = run.folders.own / 'output' / 'verify'",
        "bench = Path(run.folders.own, 'output', 'verify')",
        "wheel = run.folders.staged.joinpath('staging')",
        "wheel = os.path.join(run.folders.staged, 'staging')",
        "run.engine.create(replace(spec, mounts=mounts))",
        "from tfdock.do.beneath import Beneath",
    ):
        assert list(second_ways("do/build/publishing.py", ast.parse(line))), line
    for line in (
        "Mount(source=made.mount_source, target='/x')",
        "places = {'{output}': folders.output.make().mount_source}",
        "from tfdock.do.beneath import remove_folder",
        "run.steps.carrier.create(spec)",
        "read_local(profile.source, folder)",
    ):
        assert not list(second_ways("do/build/publishing.py", ast.parse(line))), line


# --- speed ----------------------------------------------------------------------------------------------------------


def test_the_command_line_is_there_before_anything_heavy_is() -> None:
    program = "import json, sys, tfdock.talk.cli; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(result.stdout)}
    assert "typer" in loaded
    assert loaded & {"docker", "jinja2", "pydantic", "requests", "rich", "tenacity", "yaml"} == set()
