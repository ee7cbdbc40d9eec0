"""`image runtime` on a real engine: the miniature's image, made by the command and used as its users will."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from refusals import refusal

from tfdock.engine.docker_engine import DockerEngine
from tfdock.engine.protocol import Cancel, ImageBuild
from tfdock.errors import BuildFailed, NetworkError
from tfdock.host.settings import load
from tfdock.host.supervise import Stop
from tfdock.images.runtime.runtime_image import BuiltRuntimeImage, RuntimeImageRequest, make
from tfdock.images.wheel_image import WheelBuild
from tfdock.images.wheel_layer import ImageWheel
from tfdock.knowledge import loader
from tfdock.knowledge.wheel_rows import RuntimeLibrary
from tfdock.oci.manifest import Descriptor
from tfdock.plan.local_source import context_archive
from tfdock.plan.render import BuildContext, from_template
from tfdock.types import ImageRef
from tfdock.verify.trial_container import trial_environment
from tfdock.wheelhouse import simple_index

from .conftest import Finished, Workshop
from .harness import KNOWLEDGE, Json, Outcome, contents, skip_without_pypi, write_profile
from .registries import own_registry
from .test_verify import requiring, rewritten

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

MIB = 1 << 20
BASE = "python:3.11-slim-bookworm"
CPU = ("--no-gpu-libraries",)
PRODUCT = """
import os, tensorflow as tf
product = tf.matmul([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]])
print([[float(product[row][column]) for column in range(2)] for row in range(2)], os.getuid(), tf.__file__)
"""


class Images:
    """The engine's images; those that a test makes are removed after it."""

    def __init__(self, workshop: Workshop) -> None:
        self.sdk, self._names = workshop.sdk, list[str]()

    def name(self, tag: str) -> str:
        self._names.append(f"tfdock-test/runtime-{os.getpid()}:{tag}")
        return self._names[-1]

    def called(self, name: str) -> str:
        """The same for a name that was given elsewhere."""
        self._names.append(name)
        return name

    def look(self, name: str) -> Json:
        found: Json = self.sdk.inspect_image(name)
        return found

    def run(self, name: str, *words: str, user: str | None = None) -> str:
        """What a container of the image prints, hardened: no root, nothing to write to but /tmp, no network."""
        limits = self.sdk.create_host_config(
            read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"], network_mode="none",
            tmpfs={"/tmp": ""},
        )  # fmt: skip
        container = self.sdk.create_container(name, list(words), host_config=limits, user=user)["Id"]
        try:
            self.sdk.start(container)
            status = self.sdk.wait(container)["StatusCode"]
            said: str = self.sdk.logs(container).decode()
        finally:
            self.sdk.remove_container(container, force=True)
        assert status == 0, said
        return said.strip()

    def close(self) -> None:
        for name in self._names:
            with contextlib.suppress(docker.errors.APIError):
                self.sdk.remove_image(name)


@pytest.fixture(scope="module")
def images(workshop: Workshop) -> Iterator[Images]:
    found = Images(workshop)
    yield found
    found.close()


@pytest.fixture(scope="module")
def outcome(finished: Finished, images: Images) -> Outcome:
    """The miniature's runtime image."""
    outcome = finished.tfdock.run("image", "runtime", finished.profile, *CPU, "--json", code=0)
    images.called(outcome.document["image"]["name"])
    return outcome


@pytest.fixture(scope="module")
def image(outcome: Outcome) -> Json:
    found: Json = outcome.document["image"]
    return found


def test_the_image_is_told_with_its_name_size_and_labels(
    finished: Finished, outcome: Outcome, image: Json, images: Images
) -> None:
    assert (outcome.document["schema"], outcome.document["ok"]) == ("tfdock.image-runtime/1", True)
    record = json.loads(finished.record.read_bytes())
    looked = images.look(image["name"])
    assert image["name"] == f"tfdock/runtime:{record['build_id']}-no-gpu-libraries"
    assert (image["id"], image["size"]) == (looked["Id"], looked["Size"])
    assert image["base"] == BASE
    # The wheel, its environment with pip, and a user: nothing else came in.
    assert 0 < image["size"] - image["base_size"] < 20 * MIB
    told = {name: value for name, value in looked["Config"]["Labels"].items() if name in image["labels"]}
    assert told == image["labels"]
    assert told["io.tfdock.build-id"] == record["build_id"]
    assert json.loads(told["io.tfdock.wheels"])[0]["sha256"] == record["wheels"][0]["sha256"]
    assert told["org.opencontainers.image.version"] in finished.wheel.name
    assert image["lacking"] == ["the libraries for GPUs, because of `--no-gpu-libraries`"]
    assert "lacks" in outcome.stderr


def test_who_runs_it_gets_python_with_tensorflow_and_is_not_root(image: Json, images: Images) -> None:
    config = images.look(image["name"])["Config"]
    assert (config["Cmd"], config["Entrypoint"], config["User"]) == (["python"], None, "10001:10001")
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(config["Env"])
    said = images.run(image["name"], "python", "-c", PRODUCT)
    assert (
        said
        == "[[19.0, 22.0], [43.0, 50.0]] 10001 /opt/tensorflow/lib/python3.11/site-packages/tensorflow/__init__.py"
    )


def test_modules_are_compiled_and_neither_wheels_nor_pips_cache_are_in_it(image: Json, images: Images) -> None:
    script = (
        "import tensorflow, importlib.util as util, pathlib;"
        "print(pathlib.Path(util.cache_from_source(tensorflow.__file__)).exists());"
        "print([str(p) for p in pathlib.Path('/').rglob('*.whl') if 'python-wheels' not in str(p)]);"
        "print([p for p in ('/root/.cache', '/opt/tfdock', '/home/tensorflow/.cache') if pathlib.Path(p).exists()])"
    )
    assert images.run(image["name"], "python", "-c", script, user="0").split("\n") == ["True", "[]", "[]"]


def test_pip_in_it_keeps_the_very_wheel(image: Json, images: Images, finished: Finished) -> None:
    frozen = images.run(image["name"], "pip", "--no-cache-dir", "freeze")
    assert frozen == f"tensorflow-miniature=={finished.wheel.name.split('-')[1]}"
    assert images.run(image["name"], "sh", "-c", "tail -1 $PIP_CONSTRAINT") == frozen
    assert images.run(image["name"], "pip", "--no-cache-dir", "check") == "No broken requirements found."


def test_what_is_there_is_not_made_again_and_a_name_can_be_given(
    finished: Finished, image: Json, images: Images
) -> None:
    again = finished.tfdock.run("image", "runtime", finished.wheel, *CPU, "--json")
    assert (again.document["image"]["status"], again.document["image"]["id"]) == ("up-to-date", image["id"])
    name = images.name("named")
    other = finished.tfdock.run("image", "runtime", finished.profile, *CPU, "--tag", name)
    assert (other.code, other.stdout.strip()) == (0, name), other.told
    assert images.look(name)["RootFS"] == images.look(image["name"])["RootFS"]


def test_switches_are_set_in_the_image_and_part_of_its_name(image: Json, images: Images, finished: Finished) -> None:
    odd = 'MINE=a "b" $HOME \\'
    words = ("--switch", "quiet", "--switch", odd, "--switch", "--xla_dump_to=/tmp/x")
    outcome = finished.tfdock.run("image", "runtime", finished.profile, *CPU, *words, "--json", code=0)
    name = images.called(outcome.document["image"]["name"])
    assert re.fullmatch(re.escape(image["name"]) + "-x[0-9a-f]{8}", name)
    sets = {"TF_CPP_MIN_LOG_LEVEL=2", odd, "XLA_FLAGS=--xla_dump_to=/tmp/x"}
    assert sets <= set(images.look(name)["Config"]["Env"])
    assert "note: tfdock knows no `MINE`" in outcome.stderr
    refused = finished.tfdock.run("image", "runtime", finished.profile, "--switch", "PATH=/x", code=2)
    assert "the image sets `PATH` itself" in refused.stderr
    refused = finished.tfdock.run("image", "runtime", finished.profile, "--switch", "quite")
    assert (refused.code, "nor a preset: `deterministic`" in refused.stderr) == (2, True), refused.told


def test_it_can_be_sent_to_a_registry_and_pulled_by_its_digest(
    finished: Finished, images: Images, tmp_path: Path
) -> None:
    with own_registry(tmp_path / "registry") as registry:
        name = images.called(f"{registry.address}/me/tensorflow:mini")
        outcome = finished.tfdock.run("image", "runtime", finished.profile, *CPU, "--push", name, "--json", code=0)
        pushed = outcome.document["image"]["pushed"]
        assert pushed["reference"] == name
        manifest = registry.get(f"/v2/me/tensorflow/manifests/{pushed['digest']}")
        assert f"sha256:{hashlib.sha256(manifest).hexdigest()}" == pushed["digest"]
        images.sdk.remove_image(name)
        pulled = images.called(f"{registry.address}/me/tensorflow@{pushed['digest']}")
        DockerEngine(finished.tfdock.engine).pull(pulled)
        assert images.look(pulled)["Id"] == outcome.document["image"]["id"]


def test_it_does_not_take_the_place_of_wheels(finished: Finished, tmp_path: Path) -> None:
    with own_registry(tmp_path / "registry") as registry:
        where = f"{registry.address}/me/wheels"
        assert finished.tfdock.run("image", "push", finished.profile, where, "--as", "all").code == 0
        before = registry.get("/v2/me/wheels/manifests/all")
        words = ("image", "runtime", finished.profile, *CPU, "--push", f"{where}:all", "--json")
        finished.tfdock.run(*words, code=2, problem="image-tag-taken")
        assert registry.get("/v2/me/wheels/manifests/all") == before


def test_a_registry_that_is_not_there_is_told_and_the_image_stays(finished: Finished, images: Images) -> None:
    name = images.called("127.0.0.1:1/me/tensorflow:mini")
    words = ("image", "runtime", finished.profile, *CPU, "--push", name, "--json")
    finished.tfdock.run(*words, code=7, problem="registry-unreachable")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--tag", "Mine"), "reference-malformed"),
        (("--push", f"reg.example/a@sha256:{'0' * 64}"), "reference-malformed"),
    ],
)
def test_a_name_that_is_none_is_refused_before_anything_is_made(
    finished: Finished, words: tuple[str, ...], code: str
) -> None:
    outcome = finished.tfdock.run("image", "runtime", finished.profile, *words, "--json")
    assert outcome.code == 2
    assert outcome.problem["code"] == code


def test_what_is_not_built_is_told_with_the_command_that_builds_it(workshop: Workshop, finished: Finished) -> None:
    profile = write_profile(finished.tfdock.home / "other.yaml", workshop.tree(), compute_capabilities=["sm_80"])
    outcome = finished.tfdock.run("image", "runtime", profile, "--json", code=2, problem="build-not-here")
    assert f"tfdock build {profile}" in outcome.problem["fix"]


# --- other wheels ---------------------------------------------------------------------------------------------------


def made(
    finished: Finished,
    wheel: Path,
    folder: Path,
    name: str,
    libraries: Callable[[RuntimeLibrary], bool] | None = None,
    **choices: str,
) -> BuiltRuntimeImage:
    """The runtime image of a wheel that no build has made; of CUDA it gets these `libraries`, or none."""
    data = wheel.read_bytes()
    listed, metadata = simple_index.read_indexed_wheel(io.BytesIO(data), wheel.name, hashlib.sha256(data).hexdigest())
    one = ImageWheel(listed=listed, metadata=metadata, size=len(data), layer=Descriptor.of("x", b""))
    chosen = [
        {"field": key, "value": value, "source": "profile"} for key, value in ({"python": "3.11"} | choices).items()
    ]
    plan = {"choices": chosen, "runtime": choices.get("runtime", BASE)}
    record = {"build_id": f"tf-{folder.name}", "fingerprint": "f" * 64, "plan": plan}
    build = WheelBuild(record=record, document=b"", wheels=(one,))
    machine = load(
        {"cache_dir": finished.tfdock.cache, "state_dir": finished.tfdock.state, "knowledge": (KNOWLEDGE,)}
    )
    knowledge = loader.knowledge(machine.knowledge)
    if libraries:
        knowledge.runtime_libraries = tuple(filter(libraries, knowledge.runtime_libraries))
        knowledge.runtime_toolkits = tuple(
            row.model_copy(update={"extras": {}, "packages": {}}) for row in knowledge.runtime_toolkits
        )
    engine, log = DockerEngine(finished.tfdock.engine), folder / "log"
    with trial_environment(engine, machine, lambda _: None, Stop(), log, build.build_id, "image") as bench:
        try:
            found = make(bench, knowledge, build, [wheel], RuntimeImageRequest(name=name, gpu=libraries is not None))
        except NetworkError as error:
            skip_without_pypi(problem.code for problem in error.problems)
            raise
        stages = [one.labels["io.tfdock.stage"] for one in engine.dangling("io.tfdock.stage")]
        assert bench.supervisor.run_id not in stages, "what an image was made in goes when it is there"
        return found


def test_a_wheel_without_a_record_is_verified_first_and_told_by_what_is_in_it(
    finished: Finished, images: Images, tmp_path: Path
) -> None:
    wheel = tmp_path / finished.wheel.name
    wheel.write_bytes(finished.wheel.read_bytes())
    name = images.name("foreign")
    words = ("image", "runtime", wheel, *CPU, "--wheelhouse", tmp_path / "empty")
    outcome = finished.tfdock.run(*words, "--tag", name, "--json", code=0)
    assert f"verified  {wheel.name}" in outcome.stderr
    found = outcome.document["image"]
    labels = images.look(name)["Config"]["Labels"]
    assert json.loads(labels["io.tfdock.wheels"])[0]["sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert not {"io.tfdock.build-id", "io.tfdock.fingerprint"} & labels.keys()
    assert "Built by tfdock" not in labels["org.opencontainers.image.description"]
    assert found["distributions"][-1].startswith("tensorflow-miniature ")
    assert images.run(name, "python", "-c", PRODUCT).startswith("[[19.0, 22.0], [43.0, 50.0]] 10001 ")
    broken = rewritten(wheel, tmp_path / "broken", {"tensorflow/__init__.py": b"raise ImportError('broken')\n"})
    outcome = finished.tfdock.run("image", "runtime", broken, *words[3:], "--json", code=4, problem="wheel-refused")
    assert "import" in outcome.problem["message"]


def test_two_wheels_that_require_the_same_share_all_layers_but_the_last(
    finished: Finished, images: Images, tmp_path: Path
) -> None:
    needing = requiring(finished.wheel, "six>=1.16")
    init = contents(finished.wheel)["tensorflow/__init__.py"]
    layers = []
    for name in ("one", "other"):
        wheel = rewritten(
            finished.wheel, tmp_path / name, {**needing, "tensorflow/__init__.py": init + f"# {name}\n".encode()}
        )
        found = made(finished, wheel, tmp_path / name, images.name(name))
        assert [one.partition(" ")[0] for one in found.distributions] == ["six", "tensorflow-miniature"]
        assert images.run(found.name, "python", "-c", "import six, tensorflow; print(six.PY3)") == "True"
        layers.append(images.look(found.name)["RootFS"]["Layers"])
    one, other = layers
    assert one[:-1] == other[:-1]
    assert one[-1] != other[-1]


def test_what_the_wheel_opens_of_cuda_is_installed_and_found_by_the_loader(
    finished: Finished, images: Images, tmp_path: Path
) -> None:
    # The smallest alone: all of them are gigabytes.
    found = made(finished, finished.wheel, tmp_path, images.name("cuda"), lambda row: row.name == "cudart")
    names = [one.partition(" ")[0] for one in found.distributions]
    assert names == ["cuda-toolkit", "nvidia-cuda-runtime", "tensorflow-miniature"]
    # The wheel was built with 13.0, and there are later ones of the same major version.
    assert all(" 13.0." in one for one in found.distributions[:2]), found.distributions
    script = "import ctypes; cuda = ctypes.CDLL('libcudart.so.13'); print(cuda.cudaGetErrorString is not None)"
    assert images.run(found.name, "python", "-c", script) == "True"


def plain(engine: DockerEngine, dockerfile: bytes, name: str) -> None:
    """An image of a Dockerfile and nothing else."""
    context = BuildContext(files={"Dockerfile": dockerfile})
    request = ImageBuild(context=lambda: context_archive(context, None))
    engine.tag(engine.build(request, lambda _: None, Cancel()), name)


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"python": "3.12", "runtime": BASE}, "the base image has no Python 3.12"),
        ({"runtime": "without-pip"}, "the base image's Python has no pip"),
    ],
)
def test_a_base_that_will_not_do_says_why(
    finished: Finished, images: Images, tmp_path: Path, choices: dict[str, str], says: str
) -> None:
    choices = {**choices}
    if choices["runtime"] != BASE:
        reference = str(load({}).mirrored(ImageRef.parse(BASE)))
        engine = DockerEngine(finished.tfdock.engine)
        # Not on Docker Hub, whose images come from the bed's registry.
        choices["runtime"] = images.called(f"reg.example/without-pip-{os.getpid()}:1")
        plain(
            engine, f"FROM {reference}\nRUN rm -rf /usr/lib/python3/dist-packages/pip*\n".encode(), choices["runtime"]
        )
    with refusal(BuildFailed, "image-step-failed") as caught:
        made(finished, finished.wheel, tmp_path, images.name("never"), None, **choices)
    (problem,) = caught.value.problems
    assert re.search(rf"{says}.*\n  log: {tmp_path}/log", problem.message, re.DOTALL)


def test_a_label_arrives_as_it_is_whatever_is_in_it(workshop: Workshop, images: Images) -> None:
    value = "a \"b\" 'c' $HOME ${PATH} $(id) `id` \\ # \\n {x} ☃"
    templates = {"x.j2": 'FROM scratch\nENV HOME=/evil\nLABEL one={{ value | quoted }} \\\n      two="2"\n'}
    name = images.name("label")
    plain(DockerEngine(workshop.host), from_template(templates, "x.j2", {"value": value}), name)
    assert images.look(name)["Config"]["Labels"] == {"one": value, "two": "2"}
