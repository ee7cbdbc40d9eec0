"""The shape of the program: who may import whom, what pure code may touch, and what code may not know."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import PurePosixPath

import pytest

from .program_sources import MODULES, ROOT, walk

#: The packages, in the order in which a build meets them. A package may import those before it and none behind it.
ORDER = (
    "profile", "host", "knowledge", "wheel", "gpu", "resolve", "plan", "oci", "engine", "bazel", "run",
    "wheelhouse", "verify", "images", "builder", "offline", "matrix", "ci", "diagnose", "installed",
    "bench", "trace", "documents", "report", "api", "cli",
)  # fmt: skip

#: The words of the program, which every package may import and which import no package.
WORDS = {"__init__.py", "errors.py", "types.py", "events.py"}

#: Third-party packages that several packages of ours import. Each other one has a single home.
SHARED = {
    "docker": "engine oci", "jinja2": "cli plan",
    "packaging": "builder images installed knowledge offline verify wheel wheelhouse",
    "pydantic": "documents knowledge matrix profile", "pydantic_core": "documents knowledge profile",
    "stringzilla": "diagnose wheel", "tenacity": "engine oci", "zstandard": "bazel wheel",
}  # fmt: skip
MOST_MODULES = 15  #: Modules in one folder, its `__init__` aside.
CROWDED = {"cli/commands"}  #: Folders that may hold more: one module for each group of commands.


def package(module: str) -> str:
    """The package of `profile/profile.py`; empty for the words, and `cli` for `__main__`."""
    if "/" in module:
        return module.partition("/")[0]
    return "cli" if module == "__main__.py" else ""


@cache
def is_pure(module: str) -> bool:
    """Whether a module or its package says that it is pure: no clock, environment, process, file or network."""
    path = PurePosixPath(module)
    own, packages = (ast.get_docstring(MODULES[name]) or "" for name in (module, f"{path.parent}/__init__.py"))
    said = re.search(r"\bPure\b([^.]*)", packages)
    return re.search(r"\bPure\b", own) is not None or (said is not None and f"`{path.stem}`" not in said[1])


@cache
def imports(tree: ast.AST) -> tuple[str, ...]:
    """Every imported module's dotted name, wherever the import stands."""
    return tuple(_imports(tree))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports here are absolute"
            assert node.module
            yield node.module
            # `from tfdock.profile import yaml_nodes` imports a module.
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("tfdock"))


def imported_modules(module: str) -> set[str]:
    """The modules of ours that a module imports, wherever, as paths."""
    paths = {f"{name.removeprefix('tfdock.').replace('.', '/')}.py" for name in imports(MODULES[module])}
    return (paths & set(MODULES)) - {module}


def test_every_module_stands_in_a_known_package() -> None:
    assert {package(module) for module in MODULES} - {""} <= set(ORDER)
    assert {module for module in MODULES if not package(module)} <= WORDS


def circles() -> list[set[str]]:
    """Return the sets of modules that import each other, directly or through others, wherever the imports stand."""
    reached = {module: imported_modules(module) for module in MODULES}
    changed = True
    while changed:
        changed = False
        for others in reached.values():
            further = set().union(*(reached[other] for other in others)) - others
            others |= further
            changed = changed or bool(further)
    found = {frozenset(other for other in reached[module] if module in reached[other]) for module in MODULES}
    return sorted((set(circle) for circle in found if len(circle) > 1), key=sorted)


def test_no_modules_import_each_other() -> None:
    assert circles() == []


def homonyms(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that stand in several modules, from pairs of name and module."""
    places: dict[str, list[str]] = {}
    for name, module in names:
        places.setdefault(name, []).append(module)
    return {name: sorted(modules) for name, modules in places.items() if len(modules) > 1}


def test_no_module_name_stands_for_two_things() -> None:
    paths = (path for path in map(PurePosixPath, MODULES) if path.parent.as_posix() != "cli/commands")
    assert homonyms((path.stem, str(path)) for path in paths if path.stem not in {"__init__", "__main__"}) == {}


def test_no_class_name_stands_for_two_things() -> None:
    classes = (
        (node.name, module)
        for module, tree in MODULES.items()
        for node in walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert homonyms(classes) == {}


def test_no_folder_holds_more_modules_than_a_reader_can_look_over() -> None:
    folders = Counter(path.parent.as_posix() for path in map(PurePosixPath, MODULES) if path.stem != "__init__")
    crowded = {folder: count for folder, count in folders.items() if count > MOST_MODULES and folder not in CROWDED}
    assert crowded == {}


def test_no_package_imports_one_behind_it() -> None:
    for module in (module for module in MODULES if package(module) in ORDER):
        allowed = ORDER[: ORDER.index(package(module)) + 1]
        assert {package(target) for target in imported_modules(module)} <= {*allowed, ""}, module


def test_a_third_party_package_is_imported_in_one_package() -> None:
    homes: dict[str, set[str]] = {}
    for module, tree in MODULES.items():
        for name in {name.partition(".")[0] for name in imports(tree)} - sys.stdlib_module_names - {"tfdock"}:
            homes.setdefault(name, set()).add(package(module))
    assert {name: " ".join(sorted(found)) for name, found in homes.items() if len(found) > 1} == SHARED


def test_a_package_says_in_ten_lines_what_it_holds_and_imports_with_names_that_exist() -> None:
    for package_file in (module for module in MODULES if module.endswith("/__init__.py")):
        text = ast.get_docstring(MODULES[package_file]) or ""
        assert len(text.splitlines()) <= 10, package_file
        assert "Imports: " in text, package_file
        folder = PurePosixPath(package_file).parent
        inside = {part for module in map(PurePosixPath, MODULES) if folder in module.parents for part in module.parts}
        known = {part.removesuffix(".py") for part in {*inside, *WORDS}} | set(ORDER)
        assert set(re.findall(r"`([a-z_]+)`", text)) - set(SHARED) <= known, package_file


# --- pure modules ---------------------------------------------------------------------------------------------------

OUTSIDE_MODULES = {
    "asyncio", "concurrent", "getpass", "glob", "http", "locale", "logging", "multiprocessing", "os", "pathlib",
    "platform", "random", "secrets", "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib", "uuid",
}  # fmt: skip
HOME_OF_THREADS = "host/thread_jobs.py"
OUTSIDE_NAMES = {"open", "input", "print", "Path", "environ", "getenv", "exec", "eval", "__import__"}
CLOCKS = {"now", "today", "utcnow"}


def test_pure_code_touches_no_environment_clock_process_or_network() -> None:
    files = {"read_text", "write_text", "read_bytes", "write_bytes"}
    for module in filter(is_pure, MODULES):
        tree = MODULES[module]
        allowed = {"concurrent", "threading"} if module == HOME_OF_THREADS else set()
        assert {name.partition(".")[0] for name in imports(tree)} & OUTSIDE_MODULES == allowed, module
        names = {node.id for node in walk(tree) if isinstance(node, ast.Name)}
        assert names & OUTSIDE_NAMES == set(), module
        attributes = {node.attr for node in walk(tree) if isinstance(node, ast.Attribute)}
        assert attributes & (CLOCKS | files) == set(), module


def test_pure_code_imports_pure_code() -> None:
    for module in filter(is_pure, MODULES):
        assert [other for other in imported_modules(module) if package(other) and not is_pure(other)] == [], module


# --- what deciding may not know -------------------------------------------------------------------------------------

DECIDERS = ("gpu/[!v]*", "resolve/*", "plan/*", "verify/checks.py", "verify/trial_plan.py", "ci/*", "matrix/*",
    "images/image_tags.py", "images/runtime/runtime_contents.py", "bazel/cache/cache_pruning.py",
    "bazel/cache_misses.py", "knowledge/contract.py", "knowledge/fits.py",
    "wheelhouse/build_record.py", "diagnose/diagnosis.py")  # fmt: skip
DECIDING = sorted(
    module for module in filter(is_pure, MODULES) if any(PurePosixPath(module).match(one) for one in DECIDERS)
)
VENDORS = re.compile(r"cuda|cudnn|nvidia|rocm|amd|radeon|geforce|hip", re.IGNORECASE)
VERSION = re.compile(r"\d+\.\d+")


def conditions(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything that code branches on."""
    for node in walk(tree):
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


def decided_by(pattern: re.Pattern[str]) -> set[tuple[str, str]]:
    """Return (module, word) for each word of a kind that code branches on."""
    decisions = ((module, node) for module in DECIDING for node in conditions(MODULES[module]))
    return {(module, word) for module, node in decisions for word in words(node) if pattern.search(word)}


def words(node: ast.AST) -> Iterator[str]:
    """The names and texts of an expression."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str | float):
            yield str(inner.value)
        elif isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def test_no_decision_depends_on_a_vendor() -> None:
    assert decided_by(VENDORS) == set()


def test_no_decision_depends_on_a_version_number() -> None:
    assert decided_by(VERSION) == set()


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
    "host/untrusted_folders.py",
    "host/files.py",
    "run/results.py",
    "bazel/cache/",
    "host/project_files.py",
    "plan/context_folder.py",
    "plan/local_source.py",
    "ci/pipeline_files.py",
)
# What looks at the sources of mounts: it creates containers, or is an engine.
CARRIERS = {"run/containers.py", "engine/engine_documents.py", "run/results.py"}
# What creates containers without folders of this machine. All others create what `copy_in` has checked.
CREATORS = {"run/containers.py", "builder/image_phase.py"}
# What names the folders above those of containers.
ABOVE = {
    "bazel/cache/cache_folder.py", "run/journal.py", "run/results.py", "wheelhouse/store.py",
    "verify/trial_container.py",
}  # fmt: skip
CHILDREN = {"output", "staging"}
PATHS = {"Path", "PurePath", "open", "joinpath", "with_name", "join", "fspath", "resolve"}


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def second_ways(module: str, tree: ast.AST) -> Iterator[str]:
    """Every place where a module takes the path of a container's folder, or opens one, past `run/results.py`."""
    above = {child: node for node in walk(tree) for child in ast.iter_child_nodes(node)}
    for node in walk(tree):
        if isinstance(node, ast.Attribute):
            said = _attribute_way(module, node, above)
        elif isinstance(node, ast.Constant):
            named = node.value in CHILDREN and module not in ABOVE and _is_path(node, above)
            said = "a folder of containers is named" if named else ""
        else:
            said = _call_way(module, node) if isinstance(node, ast.Call) else ""
        if said:
            yield f"{module}:{node.lineno}: {said}"  # type: ignore[attr-defined]
    if "tfdock.host.untrusted_folders.UntrustedFolder" in imports(tree) and not module.startswith(OPENERS):
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
    if node.args and isinstance(node.args[0], ast.Call) and called(node.args[0]) == "copy_in":
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


def test_results_leave_a_container_in_one_way() -> None:
    for module in (module for module in MODULES if not is_pure(module) and package(module) != "cli"):
        assert list(second_ways(module, MODULES[module])) == [], module


def test_the_scan_finds_who_takes_a_second_way() -> None:
    for line in (
        "folder = Path(run.folders.bazel_output.mount_source) / 'verify'",
        "open(run.folders.container_results.make().mount_source + '/done')",
        "text = f'{run.folders.container_results.mount_source}/done'",
        "source = made.mount_source",
        "os.walk(run.folders.bazel_output._written)",
        "shutil.rmtree(spec.mounts[0].source)",
        "Path(mount.source).mkdir()",
        "bench = run.folders.own / 'output' / 'verify'",
        "bench = Path(run.folders.own, 'output', 'verify')",
        "wheel = run.folders.staged.joinpath('staging')",
        "wheel = os.path.join(run.folders.staged, 'staging')",
        "run.engine.create(replace(spec, mounts=mounts))",
        "from tfdock.host.untrusted_folders import UntrustedFolder",
    ):
        assert list(second_ways("builder/seal_phase.py", ast.parse(line))), line
    for line in (
        "Mount(source=made.mount_source, target='/x')",
        "places = {'{output}': folders.bazel_output.make().mount_source}",
        "from tfdock.host.untrusted_folders import remove_folder",
        "run.engine.create(copy_in(run.supervisor, spec))",
        "read_local(profile.source, folder)",
    ):
        assert not list(second_ways("builder/seal_phase.py", ast.parse(line))), line


# --- files of others ------------------------------------------------------------------------------------------------

# `host/untrusted_folders.py` opens what others may have filled: a wheelhouse, a checkout, a cache. Who opens files in
# another way says whose they are.
OPENED = {
    "the door": {"host/untrusted_folders.py", "host/files.py"},
    "the program's own": {
        "cli/pages/html_page.py", "resolve/resolve.py", "resolve/starter.py",
    },
    "the system's": {
        "cli/main.py", "engine/address.py", "engine/engine_documents.py", "engine/engine_machine.py",
        "host/hardware.py", "installed/nvidia_driver.py",
    },
    "named by the user": {
        "cli/bundle_report.py", "cli/ci_log.py", "cli/completion.py",
        "cli/commands/bench.py", "cli/commands/check.py", "cli/commands/init.py",
        "cli/commands/report.py", "cli/matrix_run.py",
        "diagnose/diagnose_logs.py", "host/settings.py", "images/runtime/runtime_image.py", "images/selection.py",
        "knowledge/loader.py", "offline/bundle_file.py",
        "wheel/wheel_file.py",
    },
    "a checkout of sources, whose files are opened beneath its folder": {"plan/local_source.py"},
    "an environment whose interpreter the user runs": {
        "installed/environment.py", "installed/loader_search.py", "installed/packages.py",
    },
    "wheels that were checked a moment ago": {"builder/build.py", "cli/commands/pull.py"},
    "in a folder that this user alone can write to": {
        "bazel/cache/cache_folder.py", "bazel/cache/cache_pull.py", "bazel/cache/domain_cache.py",
        "bazel/cache/exchange.py", "bazel/remote/relay.py", "bazel/remote/remote_session.py",
        "builder/held_caches.py", "builder/bazel_phases.py", "builder/seal_phase.py", "host/background.py",
        "images/runtime/runtime_trial.py", "offline/bundle_writer.py", "offline/fetch.py", "run/containers.py",
        "run/disk_space.py", "run/journal.py", "run/results.py", "trace/script_places.py",
        "trace/xprof_tables.py", "verify/trial.py", "verify/trial_container.py",
    },
    "open already, and bounded": {
        "builder/build_summary.py", "report/report_bundle.py", "engine/engine_archives.py",
    },
}  # fmt: skip
# What opens a folder through a link: the user typed its name, or what lies in it is the user's own.
FOLLOWERS = {
    "host/files.py", "host/untrusted_folders.py", "cli/bundle_report.py",
    "cli/commands/bench.py", "cli/commands/check.py",
    "cli/commands/report.py", "plan/context_folder.py",
}  # fmt: skip
WAYS = {
    "read_bytes", "read_text", "write_text", "write_bytes", "rglob", "glob", "iterdir", "scandir", "listdir",
    "rmtree", "unlink", "copyfile", "copy2", "copytree", "extractall", "ZipFile", "GzipFile",
}  # fmt: skip
MODE = re.compile(r"[rwax]b?\+?b?")


def own_ways(tree: ast.AST) -> set[str]:
    """How a module opens, lists or removes files, past the door."""
    return {way for node in walk(tree) if isinstance(node, ast.Call) and (way := _own_way(node))}


def _own_way(node: ast.Call) -> str:
    owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if called(node) in WAYS or (owner, called(node)) in (("os", "walk"), ("shutil", "move")):
        return called(node)
    # `open` of the door takes names and no mode.
    modes = [arg for arg in node.args if isinstance(arg, ast.Constant) and MODE.fullmatch(str(arg.value))]
    return "open" if called(node) == "open" and (owner in ("", "os", "tarfile", "gzip") or modes) else ""


def test_who_opens_files_past_the_door_says_whose_they_are() -> None:
    assert {module for module, tree in MODULES.items() if own_ways(tree)} == set().union(*OPENED.values())


def test_links_are_followed_where_the_user_typed_the_name() -> None:
    found = {
        module
        for module, tree in MODULES.items()
        for node in walk(tree)
        if isinstance(node, ast.keyword)
        and node.arg == "follow"
        and ast.unparse(node.value) not in ("False", "follow")
    }
    assert found == FOLLOWERS


# Who else parses JSON, and whose it is.
PARSERS = {
    "host/foreign_json.py",  # anybody's
    "engine/streams.py", "engine/engine_facts.py",  # the engine's
    "engine/engine_archives.py",  # an archive that an engine reads next: as Go reads it, and bounded
    "engine/address.py",  # the user's settings
    "knowledge/loader.py", "builder/seal_phase.py",  # our own, a moment or a hash ago
}  # fmt: skip


def test_who_parses_json_in_another_way_says_whose_it_is() -> None:
    found = {
        module
        for module, tree in MODULES.items()
        for node in walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.loads", "json.load", "json.JSONDecoder")
    }
    assert found == PARSERS


@pytest.mark.parametrize(
    "line",
    [
        "open(path)", "path.open('rb')", "path.read_bytes()", "os.walk(path)", "gzip.open(path)",
        "tarfile.open(path)", "shutil.rmtree(path)", "house.root.glob('*.whl')", "path.write_text('x')",
        "os.open(path, 0)",
    ],
)  # fmt: skip
def test_the_scan_finds_who_opens_files_past_the_door(line: str) -> None:
    assert own_ways(ast.parse(line))


# --- speed ----------------------------------------------------------------------------------------------------------


def test_the_command_line_is_there_before_anything_heavy_is() -> None:
    program = "import json, sys, tfdock.cli.main; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(result.stdout)}
    assert "typer" in loaded
    assert loaded & {"docker", "jinja2", "pydantic", "requests", "rich", "tenacity", "yaml"} == set()


# --- the page for readers -------------------------------------------------------------------------------------------

PAGE = ROOT.parent / "docs/architecture.md"


def test_the_architecture_page_names_every_package_in_order_and_no_module_that_is_not_there() -> None:
    page = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| `([a-z_/]+)/` \|", page, re.MULTILINE)
    folders = {PurePosixPath(module).parent.as_posix() for module in MODULES if "/" in module}
    assert set(rows) == folders - {"cli/commands", "cli/pages"}
    assert [row for row in rows if "/" not in row] == list(ORDER)
    named = set(re.findall(r"`?([a-z_]+/[a-z_/]+\.(?:py|yaml))", page))
    assert [path for path in named if not (ROOT / path).is_file() and not (ROOT.parent / path).is_file()] == []
