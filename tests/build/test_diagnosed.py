"""Real failures, provoked in the real pipeline: `tfdock build` itself names the cause, by the log of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tfdock.knowledge import loader

from .conftest import EditedTree
from .harness import Tfdock, before, replaced

pytestmark = [pytest.mark.engine, pytest.mark.limit(300)]

KERNEL = "tensorflow/core/kernels/relu_op.cc"
PACKAGE = "tensorflow/tools/pip_package"
HIDDEN = "tensorflow/compiler/jit/hidden.h"
KNOWLEDGE = loader.knowledge()
OTHER_SUM = replaced('sha256 = "8', 'sha256 = "0')
Edits = Mapping[str, Callable[[str], str]]


def after(text: str) -> Callable[[str], str]:
    return lambda content: content + text


def from_elsewhere(url: str) -> Callable[[str], str]:
    """The one download, from there, and as something that no cache has."""
    return lambda text: OTHER_SUM(text).replace("http://127.0.0.1:5552/minimath-1.0.tar.gz", url)


PROVOKED: dict[str, Edits] = {
    "keras_preprocessing_missing": {"configure.py": before("import keras_preprocessing\n")},
    "config_undefined": {".bazelrc": after("\nbuild --config=nowhere\n")},
    "unrecognized_option": {".bazelrc": after("\nbuild --frobnicate_quickly\n")},
    "fetch_checksum": {"WORKSPACE": OTHER_SUM},
    "fetch_404": {"WORKSPACE": from_elsewhere("http://127.0.0.1:5552/minimath-9.9.tar.gz")},
    "fetch_unknown_host": {"WORKSPACE": from_elsewhere("http://nowhere.invalid/minimath-1.0.tar.gz")},
    "wheel_target_missing": {f"{PACKAGE}/BUILD": replaced('name = "wheel"', 'name = "wheels"')},
    "header_not_found": {KERNEL: before("#include <frobnicate/frobnicate.h>\n")},
    "gcc13_cstdint": {KERNEL: before("inline uint32_t Same(uint32_t number) { return number; }\n")},
    "undeclared_inclusions": {
        KERNEL: before(f'#include "{HIDDEN}"\n'),
        HIDDEN: after("// nobody declares this one\n"),
    },
    "nvcc_unsupported_arch": {
        "third_party/gpus/cuda_library.bzl": replaced("(number, code.format(number))", '("35", code.format("35"))')
    },
    # The wheel is made, and its trial fails.
    "python_module_missing": {"tensorflow/__init__.py": before("import frobnicate\n")},
}


@pytest.mark.usefixtures("finished")  # so that little is to be compiled before the failure
def test_a_build_names_the_cause_of_a_real_failure(tfdock: Tfdock, edited: EditedTree) -> None:
    profiles = {name: edited({**edits, "MARK": after(name)}, name=name) for name, edits in PROVOKED.items()}
    outcome = tfdock.build(*profiles.values(), "-j", "2")
    found = {Path(one["profile"]).stem: [cause["id"] for cause in one["diagnosis"]] for one in outcome.builds}
    assert {name: causes[:1] for name, causes in found.items()} == {name: [name] for name in PROVOKED}, outcome.told
    for one in outcome.builds:
        (cause, *_) = one["diagnosis"]
        assert one["status"] in ("failed", "refused")
        sure = {"high": "sure", "medium": "probably"}[cause["confidence"]]
        assert f"{cause['id']} [{cause['stage']}, {sure}] {Path(one['log']).name}:{cause['line']}" in outcome.stderr
        assert "your profile asks" in cause["asked"] or not KNOWLEDGE.failures[cause["id"]].asks
