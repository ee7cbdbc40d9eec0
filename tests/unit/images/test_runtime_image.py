"""Runtime images: which packages, variables and files they get, and what becomes of one on an engine in memory.

`make golden` writes tests/golden-runtime anew; the diff is then read line by line.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from fake_engine import FakeBuild, FakeEngine, FakeRun

from tfdock.cli.commands import image_runtime
from tfdock.engine.protocol import ContainerSpec, ImageBuild, ImageInfo
from tfdock.errors import (
    BuildFailed,
    NetworkError,
    Problem,
    ProfileError,
    TfdockError,
    VerificationFailed,
    WheelRefused,
)
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop
from tfdock.images.runtime.runtime_contents import (
    STAGES,
    RuntimeImage,
    libraries,
    render_runtime,
    settings,
    site_packages,
)
from tfdock.images.runtime.runtime_image import BuiltRuntimeImage, RuntimeImageRequest, make
from tfdock.images.wheel_image import WheelBuild
from tfdock.images.wheel_layer import ImageWheel
from tfdock.knowledge import loader
from tfdock.oci.manifest import Descriptor
from tfdock.types import ImageRef
from tfdock.verify.trial_container import TrialEnvironment, trial_environment
from tfdock.wheel import zip_archive
from tfdock.wheel.facts import Library
from tfdock.wheel.inspection import Inspection
from tfdock.wheel.wheel_file import inspected
from tfdock.wheelhouse import simple_index

from .. import golden
from ..desk import problem_of
from ..small_wheels import NAME, inspection_of, wheel_of

KNOWLEDGE = loader.knowledge()
TEMPLATES = loader.templates()
GOLDEN = Path(__file__).parents[2] / "golden-runtime"
BASE = "python:3.11-slim-bookworm"
BUILD_ID = "tf2.18.0-py3.11-cuda12.5.1-cudnn9.3.0-sm86-x86_64"


def built(
    cuda: str = "", cudnn: str = "", version: str = "2.18.0", runpath: Sequence[str] = (), *, opener: bool = False
) -> Inspection:
    """A wheel of that release, built with these; without CUDA it is for the CPU. An `opener` searches nothing."""
    info = {"is_cuda_build": bool(cuda), "cuda_version": cuda, "cudnn_version": cudnn}
    core = Library(
        path="tensorflow/libtensorflow_cc.so.2", size=1, machine="x86_64", versions={}, runpath=tuple(runpath)
    )
    other = replace(core, path="tensorflow/libtensorflow_framework.so.2", runpath=())
    return inspection_of(version, (core, other)[: 1 + opener], info if cuda else {"is_cuda_build": False})


EXTRA = tuple(
    f"nvidia-{name}-cu12=={version}"
    for name, version in {
        "cublas": "12.5.3.2", "cuda-cupti": "12.5.82", "cuda-nvcc": "12.5.82", "cuda-runtime": "12.5.82",
        "cudnn": "9.3.0.75", "cufft": "11.2.3.61", "cusolver": "11.6.3.83", "cusparse": "12.5.1.3", "nccl": "2.21.5",
    }.items()
)  # fmt: skip


# --- packages -------------------------------------------------------------------------------------------------------


CU13_LINES = (
    "cuda-toolkit[cublas,cudart,cufft,cupti,cusolver,cusparse,nvcc,nvvm]==13.0.*", "nvidia-nccl-cu13==2.*",
    "nvidia-cudnn-cu13==9.12.*",
)  # fmt: skip
CU11_LINES = (
    "nvidia-cuda-runtime-cu11==11.*", "nvidia-cublas-cu11==11.*", "nvidia-cufft-cu11==10.*",
    "nvidia-curand-cu11==10.*", "nvidia-cusolver-cu11==11.*", "nvidia-cusparse-cu11==11.*", "nvidia-cudnn-cu11==8.*",
    "nvidia-cuda-nvcc-cu11",
)  # fmt: skip


@pytest.mark.parametrize(
    ("wheel", "extra", "lines"),
    [
        pytest.param(built("12.5.1", "9.3.0"), EXTRA, EXTRA, id="its own extra is taken as it is"),
        pytest.param(built("13.0", "9.12", version="2.21.0"), EXTRA, CU13_LINES, id="not one for another toolkit"),
        pytest.param(built("11.2", "8.1", version="2.10.0"), (), CU11_LINES, id="no extra: what is known, each once"),
        pytest.param(built(), (), (), id="for the CPU"),
    ],
)
def test_the_packages_of_a_wheel_follow_from_its_toolkit_and_its_extra(
    wheel: Inspection, extra: tuple[str, ...], lines: tuple[str, ...]
) -> None:
    found = libraries(KNOWLEDGE, wheel, extra, "3.11" if extra else "3.10")
    assert (sorted(found.lines), found.lacking) == (sorted(lines), ())


@pytest.mark.parametrize(
    ("cuda", "cudnn", "recorded", "wanted"),
    [
        pytest.param("12.8", "9", {"cuda": "12.8.1", "cudnn": "9.8.0"}, ("]==12.8.*", "nvidia-cudnn-cu12==9.8.*"),
                     id="the record knows more than the wheel"),
        pytest.param("12.8", "9", {"cuda": "11.8.0", "cudnn": "9"}, ("]==12.8.*", "nvidia-cudnn-cu12==9.*"),
                     id="the wheel's own word counts"),
        pytest.param("12.7", "9.99", {}, ("nvidia-cublas-cu12==12.*", "nvidia-cudnn-cu12==9.*"),
                     id="versions that no package has are those of the major version"),
    ],
)  # fmt: skip
def test_an_extra_for_another_minor_version_of_the_toolkit_is_not_taken(
    cuda: str, cudnn: str, recorded: dict[str, str], wanted: tuple[str, str]
) -> None:
    found = libraries(KNOWLEDGE, built(cuda, cudnn), EXTRA if recorded else (), "3.11", recorded)
    assert [any(line.endswith(end) for line in found.lines) for end in wanted] == [True, True]


def test_what_nobody_packs_is_said_to_be_lacking() -> None:
    found = libraries(KNOWLEDGE, built("10.1", "7.6", version="2.3.0"), (), "3.8")
    assert found.lines == ()
    assert found.lacking[0].startswith("libcudart.so.10.1, libcublas.so.10, ")
    assert "libcudnn.so.7" in found.lacking[0]
    assert found.lacking[0].endswith("no known package has these libraries; without them, the wheel uses no GPU")
    assert found.lacking[1:] == ("libdevice.10.bc, for XLA: no known package has this file",)


def test_what_an_extra_names_and_this_python_cannot_have_is_left_out_and_told() -> None:
    own = (line.replace("cu12==12.5", "cu11==11.8").replace("cu12", "cu11") for line in EXTRA)
    lines = (*own, "tensorrt==8.5.3.1")
    on_311 = libraries(KNOWLEDGE, built("11.8", "8.7", version="2.14.1"), lines, "3.11")
    assert on_311.lines == lines[:-1]
    assert on_311.lacking == ("tensorrt==8.5.3.1, which has no files for Python 3.11",)
    on_310 = libraries(KNOWLEDGE, built("11.8", "8.7", version="2.14.1"), lines, "3.10")
    assert (on_310.lines, on_310.lacking) == (lines, ())


# --- variables ------------------------------------------------------------------------------------------------------

CU12 = (
    "nvidia/cublas/lib/libcublas.so.12", "nvidia/cublas/lib/libcublasLt.so.12", "nvidia/cuda_nvcc/bin/ptxas",
    "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc", "nvidia/nvjitlink/lib/libnvJitLink.so.12",
)  # fmt: skip
CU11 = tuple(name.replace(".so.12", ".so.11") for name in CU12)
CU13 = ("nvidia/cu13/lib/libcublas.so.13", "nvidia/cu13/nvvm/libdevice/libdevice.10.bc")
TOOLKIT = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "NVIDIA_VISIBLE_DEVICES": "all"}


BESIDE = ["$ORIGIN/../nvidia/cublas/lib", "$ORIGIN"]
OLD = built("11.2", "8.1", version="2.10.0")


@pytest.mark.parametrize(
    ("wheel", "members", "library_path", "xla"),
    [
        pytest.param(built("12.5.1", "9.3.0", runpath=BESIDE), CU12, (), None, id="it looks beside itself"),
        pytest.param(OLD, (*CU11, "numpy.libs/libblas.so.3"), ("/s/nvidia/cublas/lib", "/s/nvidia/nvjitlink/lib"),
                     "/s/nvidia/cuda_nvcc", id="it does not"),
        pytest.param(built("12.5.1", "9.3.0", version="2.21.0", runpath=BESIDE, opener=True), CU12,
                     ("/s/nvidia/cublas/lib", "/s/nvidia/nvjitlink/lib"), None,
                     id="only a library does that opens none"),
        pytest.param(built("13.0", "9.12", version="2.21.0", runpath=BESIDE), CU13, ("/s/nvidia/cu13/lib",),
                     "/s/nvidia/cu13", id="a folder that no release looks into"),
        pytest.param(OLD, (), (), None, id="without the libraries"),
        pytest.param(built(), (), (), None, id="for the CPU"),
    ],
)  # fmt: skip
def test_a_wheel_is_told_where_its_libraries_are_if_it_does_not_look_there(
    wheel: Inspection, members: tuple[str, ...], library_path: tuple[str, ...], xla: str | None
) -> None:
    found = settings(KNOWLEDGE, wheel, "/s", members)
    flags = {"XLA_FLAGS": f"--xla_gpu_cuda_data_dir={xla}"} if xla else {}
    toolkit = {} if wheel == built() else TOOLKIT
    assert (found.variables, found.library_path) == (toolkit | flags, library_path)


# --- the context ----------------------------------------------------------------------------------------------------

PINS = {
    "required": ("numpy==2.0.2",),
    "accelerator": ("nvidia-cudnn-cu12==9.3.0.75",),
    "wheel": ("tensorflow==2.18.0",),
}
HOSTILE = "a \"b\" 'c' $HOME ${PATH} $(id) `id` \\ # {{ x }} \\n"


def image(name: str) -> RuntimeImage:
    """The images whose contexts are kept as golden files."""
    wheel, members, stages = {
        "cpu": (built(), (), ("required", "wheel")),
        "cuda": (built("12.5.1", "9.3.0", runpath=["$ORIGIN/../nvidia/cublas/lib"]), CU12, STAGES),
        "cuda-2.10": (OLD, CU11, STAGES),
        "alone": (built(), (), ("wheel",)),
    }[name]
    wheels = json.dumps([{"file": NAME, "sha256": "0" * 64, "size": 1}])
    return RuntimeImage(
        build_id=BUILD_ID,
        base=ImageRef.parse(BASE),
        python="3.11",
        stages={stage: PINS[stage] for stage in stages},
        settings=settings(KNOWLEDGE, wheel, site_packages("3.11"), members),
        labels={"io.tfdock.build-id": BUILD_ID, "io.tfdock.wheels": wheels},
        constraints="tensorflow==2.18.0\n",
    )


CASES = ("alone", "cpu", "cuda", "cuda-2.10")


@pytest.mark.parametrize("name", CASES)
def test_an_image_renders_to_the_very_bytes_that_were_read_last(name: str, refresh_golden: bool) -> None:
    files = render_runtime(image(name), TEMPLATES).files
    golden.held_against(GOLDEN / name, files, refresh=refresh_golden)
    assert sorted(folder.name for folder in GOLDEN.iterdir()) == sorted(CASES)


def dockerfile(name: str) -> str:
    return render_runtime(image(name), TEMPLATES).files["Dockerfile"].decode()


@pytest.mark.parametrize("name", CASES)
def test_hadolint_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(dockerfile(name), "utf-8")
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or "hadolint"
    result = subprocess.run([program, tmp_path / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("name", CASES)
def test_the_dockerfile_is_one_for_the_classic_builder(name: str) -> None:
    text = dockerfile(name)
    assert not re.search(r"^#\s*\w+\s*=", text), "a directive: syntax, escape or check"
    options = re.findall(r"^(?:RUN|COPY|ADD)\s+(--\S+)", text, re.MULTILINE)
    assert {option.partition("=")[0] for option in options} == {"--from"}
    assert "<<" not in text
    assert "\n\n\n" not in text


def test_only_what_comes_last_differs_between_two_wheels_that_require_the_same() -> None:
    one, other = image("cuda"), replace(image("cuda"), build_id="other", labels={"x": "y"}, constraints="other\n")
    copied = [line for line in dockerfile("cuda").splitlines() if line.startswith("COPY --from=")]
    assert [re.findall(r"--from=(\w+)", line)[0] for line in copied] == ["python", *STAGES]
    ours, theirs = (render_runtime(each, TEMPLATES).files for each in (one, other))
    assert {path for path in ours if ours[path] != theirs[path]} == {"Dockerfile", "wheel/constraints.txt"}
    until = ours["Dockerfile"].decode().index("LABEL io.tfdock.build-id")
    head = ours["Dockerfile"].decode()[:until]
    assert theirs["Dockerfile"].decode().partition("\nARG ")[2].startswith(head.partition("\nARG ")[2])


def test_a_label_is_one_word_whatever_is_in_it() -> None:
    text = render_runtime(replace(image("cpu"), labels={"one": HOSTILE, "two": "x"}), TEMPLATES).files["Dockerfile"]
    (line,) = [line for line in text.decode().splitlines() if line.startswith("LABEL one=")]
    # As a shell reads double quotes, but for backticks, which the builder leaves alone; shlex unquotes no dollar.
    _, word = shlex.split(line.removesuffix(" \\"))
    assert word.replace("\\$", "$") == f"one={HOSTILE}"
    with pytest.raises(ValueError, match="control character"):
        render_runtime(replace(image("cpu"), labels={"one": "a\nRUN id"}), TEMPLATES)


# --- on an engine in memory -----------------------------------------------------------------------------------------


@dataclass
class Bench:
    """Where images are made, and of what."""

    engine: FakeEngine
    environment: TrialEnvironment
    folder: Path

    def made(self, wish: RuntimeImageRequest | None = None, **plan: Any) -> BuiltRuntimeImage:
        build = build_of(self.folder, **plan)
        return make(self.environment, KNOWLEDGE, *build, wish or RuntimeImageRequest(name="mine:1"))

    def refused(self, kind: type[TfdockError], code: str, **plan: Any) -> Problem:
        problem = problem_of(lambda: self.made(**plan), kind)
        assert problem.code == code
        return problem

    @property
    def context(self) -> dict[str, bytes]:
        ((request,),) = self.engine.called("build")
        assert isinstance(request, ImageBuild)
        assert request.network == "none"
        return files_of(request)


def files_of(request: ImageBuild) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(request.context()))) as tar:
        return {one.name: file.read() for one in tar if (file := tar.extractfile(one))}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    engine = FakeEngine()
    engine.registry[BASE] = ImageInfo(id="sha256:" + "a" * 64, size=100, digests=(f"{BASE}@sha256:{'b' * 64}",))
    engine.registry["reg.example/py:1"] = ImageInfo(id="sha256:" + "c" * 64, size=7)
    engine.on_run = containers()
    machine = Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")
    log = tmp_path / "cache/images/log"
    with trial_environment(engine, machine, lambda _: None, Stop(), log, BUILD_ID, "image") as environment:
        yield Bench(engine, environment, tmp_path)
    assert engine.containers("io.tfdock.run") == []
    assert [*tmp_path.glob("cache/output/*"), *tmp_path.glob("state/runs/*")] == []


def containers(
    outcomes: Mapping[str, str] = MappingProxyType({}), add: Callable[[Path], None] = lambda _: None
) -> Callable[[ContainerSpec], FakeRun]:
    """Fetches what is asked for by name, to which `add` adds, and tries images: all passes but these outcomes."""

    def run(spec: ContainerSpec) -> FakeRun:
        places = {mount.target: Path(mount.source) for mount in spec.mounts}

        def effect(_: ContainerSpec) -> None:
            fetch(places["/tfdock/given"], places["/tfdock/made"] / "wheels")
            add(places["/tfdock/made"] / "wheels")

        if "/tfdock/made" in places:
            return FakeRun(effect=effect)
        request = json.loads((places["/tfdock/try"] / "request.json").read_bytes())
        results = [
            {"check": one["check"], "outcome": outcomes.get(one["check"], "passed")} for one in request["checks"]
        ]
        lines = [f"{request['mark']} {json.dumps(one)}\n".encode() for one in results if one["outcome"] != "none"]
        return FakeRun(output=lines, exit_code=0 if lines else 139)

    return run


def fetch(given: Path, folder: Path) -> None:
    folder.mkdir()
    for line in (given / "requirements.txt").read_text().splitlines():
        name = re.split(r"[<=>;\s]", line)[0].replace("-", "_")
        with zipfile.ZipFile(folder / f"{name.partition('[')[0]}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("nvidia/cudnn/lib/libcudnn.so.9" if "cudnn" in name else f"{name}.py", "")
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", "")


def build_of(folder: Path, **plan: Any) -> tuple[WheelBuild, list[Path]]:
    """A finished build of a small wheel, and where that lies."""
    path = folder / NAME
    path.write_bytes(wheel_of({"tensorflow/__init__.py": b""}))
    with path.open("rb") as file:
        listed, metadata = simple_index.read_indexed_wheel(file, NAME, hashlib.sha256(path.read_bytes()).hexdigest())
    layer = Descriptor.of("x", b"")
    wheel = ImageWheel(listed=listed, metadata=metadata, size=path.stat().st_size, layer=layer)
    choices = [{"field": "python", "value": "3.11", "source": "default"}]
    record = {"build_id": BUILD_ID, "fingerprint": "f" * 64, "plan": {"choices": choices, "runtime": BASE, **plan}}
    return WheelBuild(record=record, document=b"", wheels=(wheel,)), [path]


def test_an_image_is_built_tried_and_then_named(bench: Bench) -> None:
    found = bench.made()
    assert set(bench.context) == {
        "Dockerfile", "tfdock/environment.sh", "tfdock/install.sh", "wheel/constraints.txt", f"wheel/{NAME}",
        "wheel/requirements.txt", "required/numpy-1.0-py3-none-any.whl", "required/requirements.txt",
    }  # fmt: skip
    assert found.distributions == ("numpy 1.0", "tensorflow 2.18.0")
    assert found.labels["io.tfdock.build-id"] == BUILD_ID
    assert found.labels["org.opencontainers.image.base.name"] == BASE
    assert found.labels["org.opencontainers.image.base.digest"] == f"sha256:{'b' * 64}"
    assert "org.opencontainers.image.created" not in found.labels
    assert (found.name, found.base_size, found.lacking, found.pushed) == ("mine:1", 100, (), None)
    assert bench.context["required/requirements.txt"] == b"numpy==1.0\n"
    steps = [name for name, *_ in bench.engine.calls]
    assert steps.index("build") < len(steps) - 1 - steps[::-1].index("start") < steps.index("tag")
    (trial,) = [spec for (spec,) in bench.engine.called("create") if getattr(spec, "name", "").endswith("-try")]
    assert isinstance(trial, ContainerSpec)
    assert (trial.user, trial.read_only, trial.network) == (None, True, "none")


def test_what_is_there_is_not_made_again(bench: Bench) -> None:
    bench.engine.on_build = labelled
    first = bench.made()
    again = bench.made()
    assert (first.status, again.status, again.id) == ("built", "up-to-date", first.id)
    assert len(bench.engine.called("build")) == 1
    bench.engine.images[BASE] = replace(bench.engine.images[BASE], id="sha256:" + "d" * 64)
    assert bench.made().status == "built"


def labelled(request: ImageBuild) -> FakeBuild:
    """Gives the image the label that its Dockerfile gives it."""
    found = re.findall(r'(io\.tfdock\.contents)="([0-9a-f]+)"', files_of(request)["Dockerfile"].decode())
    return FakeBuild(labels=dict(found))


def test_stages_that_have_served_are_removed_and_those_of_others_stay(bench: Bench) -> None:
    for name, run in (("ours", bench.environment.supervisor.run_id), ("theirs", "20261122-000000-aaaaaa")):
        bench.engine.images[name] = ImageInfo(id=f"sha256:{name}", labels={"io.tfdock.stage": run})
    bench.made()
    assert [one for (one,) in bench.engine.called("remove_image")] == ["sha256:ours"]


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [({"import": "failed"}, "`import`"), ({"op": "none"}, "`op`: no result"), ({"user": "failed"}, "`user`"),
     (dict.fromkeys(("user", "dependencies", "import", "op"), "none"), "exit status 139")],
)  # fmt: skip
def test_an_image_that_does_not_work_gets_no_name(bench: Bench, outcomes: Mapping[str, str], says: str) -> None:
    bench.engine.on_run = containers(outcomes)
    problem = bench.refused(VerificationFailed, "runtime-image-broken")
    assert says in problem.message
    assert str(bench.folder / "cache/images/log") in problem.fix
    assert bench.engine.called("tag") == bench.engine.called("push") == []


def test_a_step_that_fails_is_told_with_its_own_last_words(bench: Bench) -> None:
    error = BuildFailed(Problem(code="image-step-failed", message="the image step failed with exit code 67"))
    said = b"tfdock: the base image has no Python 3.11\n"
    bench.engine.on_build = lambda _: FakeBuild(output=[b"Step 1/9\n", said], error=error)
    message = bench.refused(BuildFailed, "image-step-failed").message
    assert said.decode().strip() in message
    assert "log: " in message


def test_an_image_is_sent_under_the_name_that_was_given(bench: Bench) -> None:
    found = bench.made(RuntimeImageRequest(name="mine:1", push="reg.example/a:2"))
    assert found.pushed is not None
    assert found.pushed["reference"] == "reg.example/a:2"
    assert re.fullmatch("sha256:[0-9a-f]{64}", found.pushed["digest"])
    assert [name for (name,) in bench.engine.called("push")] == ["reg.example/a:2"]


def chosen(python: str = "3.11", runtime: object = "reg.example/py:1") -> dict[str, Any]:
    """A plan of a profile that names its runtime."""
    return {"choices": [choice("python", python), choice("runtime", runtime, "profile")], "runtime": runtime}


def choice(field: str, value: object, source: str = "default") -> dict[str, object]:
    return {"field": field, "value": value, "source": source}


PYTHONS = ["", "3", "3.11'; evil #", "../../3.11", "3.11\nRUN id", "٣.١١", "3.11.0"]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({"choices": [choice("python", "3.99")]}, id="a Python without a known image"),
        pytest.param({"choices": "mine"}, id="choices that are none"),
        *(pytest.param(chosen(python), id=f"Python {python}") for python in PYTHONS),
        *(pytest.param(chosen(runtime=name), id=f"runtime {name}")
          for name in ("Not An Image", "a\nRUN id", "a$(id)", 3)),
    ],
)  # fmt: skip
def test_a_record_whose_python_or_runtime_is_none_gives_no_image(bench: Bench, plan: dict[str, Any]) -> None:
    bench.refused(ProfileError, "runtime-unknown", **plan)
    assert bench.engine.called("pull") == bench.engine.called("build") == []


def test_a_record_with_an_empty_runtime_gets_the_known_one(bench: Bench) -> None:
    for empty in ("", list[object]()):
        assert bench.made(**chosen(runtime=empty)).base == BASE


def test_what_a_record_says_is_a_line_in_a_label(bench: Bench) -> None:
    source = {"kind": "archive", "location": 'https://example/\nRUN id\n"$(id)', "commit": "\x1b[31m"}
    found = bench.made(image={"source": source})
    assert found.labels["org.opencontainers.image.source"] == 'https://example/ RUN id "$(id)'
    assert b"\nRUN id" not in bench.context["Dockerfile"]


@pytest.mark.parametrize(
    "name", ["numpy-1.0.whl", "a\n--index-url=x-1.0-py3-none-any.whl", "..-1.0-py3-none-any.whl", "broken", "link"]
)
def test_what_a_package_put_among_the_wheels_is_not_installed(bench: Bench, name: str) -> None:
    def evil(folder: Path) -> None:
        honest, path = folder / "numpy-1.0-py3-none-any.whl", folder / name
        if not name.endswith(".whl"):
            path = folder / "evil-1.0-py3-none-any.whl"
        if name == "link":
            path.symlink_to(honest)
        else:
            path.write_bytes(b"PK" if name == "broken" else honest.read_bytes())

    bench.engine.on_run = containers(add=evil)
    stays = name in ("link", "a\n--index-url=x-1.0-py3-none-any.whl")
    code = "container-file-refused" if stays else "dependencies-unavailable"
    assert "\n" not in bench.refused(TfdockError, code).message
    assert bench.engine.called("build") == []


def test_a_wheel_that_requires_what_cannot_be_read_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def requiring(path: Path) -> Inspection:
        found = inspected(path)
        return replace(found, metadata=replace(found.metadata, requires_dist=("numpy @ https://example/numpy.whl",)))

    monkeypatch.setattr("tfdock.images.runtime.runtime_image.inspected", requiring)
    assert bench.refused(ProfileError, "dependencies-unavailable").fix


def test_the_image_that_the_profile_names_is_the_base(bench: Bench) -> None:
    found = bench.made(**chosen())
    assert (found.base, found.base_size) == ("reg.example/py:1", 7)
    assert "org.opencontainers.image.base.digest" not in found.labels


def test_packages_that_cannot_be_had_are_the_networks_fault(bench: Bench) -> None:
    bench.engine.on_run = lambda _: FakeRun(
        output=[b"ERROR: No matching distribution found for numpy\n"], exit_code=1
    )
    problem = bench.refused(NetworkError, "dependencies-unavailable")
    assert "--dependencies" not in problem.fix, "an option of another command"


def test_a_wheel_that_is_replaced_meanwhile_gives_no_image(bench: Bench) -> None:
    def replacing(_: ImageBuild) -> FakeBuild:
        (bench.folder / NAME).write_bytes(b"another")
        return FakeBuild()

    bench.engine.on_build = replacing
    bench.refused(WheelRefused, "wheel-changed")
    assert bench.engine.called("tag") == []


@pytest.fixture
def for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small wheel says that it was built with CUDA."""
    info = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9.3.0"}
    monkeypatch.setattr(
        "tfdock.images.runtime.runtime_image.inspected", lambda path: replace(inspected(path), build_info=info)
    )


@pytest.mark.usefixtures("for_gpus")
def test_a_library_with_a_directory_larger_than_any_is_not_installed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own reader holds all of it in memory: some gigabytes."""
    monkeypatch.setattr(zip_archive, "MAX_MEMBERS", 20)

    def swell(folder: Path) -> None:
        for path in folder.glob("nvidia_cudnn*"):
            with zipfile.ZipFile(path, "a") as wheel:
                for number in range(20):
                    wheel.writestr(f"{number}.py", "")

    bench.engine.on_run = containers(add=swell)
    assert "22 members" in bench.refused(ProfileError, "dependencies-unavailable").message
    assert bench.engine.called("build") == []


@pytest.mark.usefixtures("for_gpus")
def test_libraries_for_gpus_are_a_layer_of_their_own(bench: Bench) -> None:
    found = bench.made()
    files = bench.context
    # The small wheel's own extra names cuDNN alone: not enough, so what is known of CUDA 12 is taken.
    assert "accelerator/cuda_toolkit-1.0-py3-none-any.whl" in files
    assert not {path for path in files if path.startswith("accelerator/numpy")}
    assert found.variables == TOOLKIT
    text = files["Dockerfile"].decode()
    assert f'ENV LD_LIBRARY_PATH="{site_packages("3.11")}/nvidia/cudnn/lib$' in text.replace("{", "", 1)


@pytest.mark.usefixtures("for_gpus")
def test_libraries_for_gpus_can_be_left_out(bench: Bench) -> None:
    found = bench.made(RuntimeImageRequest(name="mine:1", gpu=False))
    assert not {path for path in bench.context if path.startswith("accelerator/")}
    assert found.lacking == ("the libraries for GPUs, because of `--no-gpu-libraries`",)


def test_a_wheel_that_links_what_the_base_lacks_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(path="a.so", size=1, machine="x86_64", versions={}, needed=("libamdhip64.so.6",))
    info = {"is_rocm_build": True}
    monkeypatch.setattr(
        "tfdock.images.runtime.runtime_image.inspected",
        lambda path: replace(inspected(path), libraries=(library,), build_info=info),
    )
    bench.refused(ProfileError, "runtime-lacks-libraries")


# --- what is said ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "variables", "line"),
    [
        ("docker", {}, "docker run --rm -it me/x:1"),
        ("docker", TOOLKIT, "docker run --rm -it --gpus all me/x:1"),
        ("podman", TOOLKIT, "podman run --rm -it --device nvidia.com/gpu=all me/x:1"),
    ],
)
def test_the_command_that_starts_it_is_the_engines_own(
    program: str, variables: dict[str, str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    image = BuiltRuntimeImage(
        status="built", name="me/x:1", id="", size=2, base="b", base_size=1, labels={}, variables=variables,
        distributions=("a 1",), lacking=(),
    )  # fmt: skip
    image_runtime._show(image, program, {})
    assert f"  run   {line}\n" in capsys.readouterr().err
