"""Print the pulled wheels, and how this machine's GPUs run them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tfdock.cli import console
from tfdock.cli.app import knowledge_for
from tfdock.cli.gpu_text import answer, gpu_json, reasons, requested_gpus
from tfdock.errors import ProfileError
from tfdock.gpu.compatibility import serve
from tfdock.gpu.gpu_facts import XLA_TRACE, facts_of_wheel
from tfdock.host import hardware
from tfdock.host.settings import Settings
from tfdock.images.image_pull import PulledImage
from tfdock.images.lookup import StoredImage
from tfdock.wheel.inspection import Inspection, inspect_wheel
from tfdock.wheel.wheel import WheelFacts
from tfdock.wheel.wheel_file import install_command


class LocalGpus:
    """Inspect pulled wheels if this machine has a GPU, keep the inspections, and print how its GPUs run them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._here = bool(hardware.local_gpus())
        self._inspections: dict[str, Inspection] = {}

    @property
    def reader(self) -> Callable[[BinaryIO, str], WheelFacts] | None:
        """A function that reads a wheel by its name and may raise WheelError. None on a machine without a GPU."""
        return self._read if self._here else None

    def _read(self, file: BinaryIO, name: str) -> WheelFacts:
        inspection = self._inspections[name] = inspect_wheel(file, name, traces=[XLA_TRACE.encode()])
        return inspection.wheel

    def show(self, wheel: Path) -> Iterator[dict[str, Any]]:
        """Print how each GPU of this machine runs a wheel; yield the rows of the JSON document."""
        if not self._here:
            return
        base = knowledge_for(self._settings)
        if wheel.name not in self._inspections:  # the wheel was already on this machine
            with wheel.open("rb") as file:
                self._read(file, wheel.name)
        try:
            requests = requested_gpus(base, ["local"])
        # The knowledge base has no row for this GPU, so nothing is printed.
        except ProfileError:
            return
        style, facts = console.Style(sys.stderr), facts_of_wheel(base, self._inspections[wheel.name])
        for request in requests:
            service = serve(base, request.gpu, facts, request.host)
            console.tell(f"  {answer(base, service, style, wheel='the wheel')}", indent=" " * 4)
            for line, indent in reasons(service, style):
                console.tell(f"  {line}", indent=f"  {indent}")
            yield gpu_json(service)


def show_pulled(image: StoredImage, pulled: PulledImage, gpus: LocalGpus) -> dict[str, Any]:
    """Print a pulled build, and return its row of the JSON document."""
    style = console.Style(sys.stderr)
    source = f", {console.size(pulled.kept)} of it by an earlier pull" if pulled.kept else ""
    console.say(f"{style.good(pulled.status)}  {pulled.build.build_id} from {pulled.origin}{source}")
    serving: list[dict[str, Any]] = []
    wheels = []
    for path, wheel in zip(pulled.wheels, pulled.build.wheels, strict=True):
        console.say(f"  wheel    {path}  {console.size(wheel.size)}")
        serving += gpus.show(path)
        install = install_command(path)
        console.say(f"  install  {install}")
        wheels.append({"path": str(path), "sha256": wheel.sha256, "size": wheel.size, "install": install})
    console.say(f"  record   {pulled.record_path}")
    return {
        "build_id": pulled.build.build_id,
        "fingerprint": pulled.build.fingerprint,
        "status": pulled.status,
        "reference": str(image.image),
        "digest": image.digest,
        "platform": image.platform,
        "wheels": wheels,
        "record": str(pulled.record_path),
        "received": pulled.received,
        "kept": pulled.kept,
        "gpus": serving,
    }
