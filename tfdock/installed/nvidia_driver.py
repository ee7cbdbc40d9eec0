"""Look at NVIDIA's driver as a process sees it: kernel module, device files, signs of a container or of WSL.

The facts come from files: few images have `nvidia-smi`, and it reports less.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tfdock.host.hardware import is_wsl, loaded_driver, text_of

_VENDOR = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")  #: PCI classes of GPUs: with and without an output for a screen.


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDriver:
    """The parts of the driver that exist. `module` is the version of the kernel module, empty if none is loaded.

    `cards` counts NVIDIA's GPUs on the PCI bus, `nodes` are the device files, `shut` the device files that this user
    may not use. `nouveau`: the free driver is loaded. `paravirtual`: WSL2's device file of the GPU exists.
    """

    module: str = ""
    cards: int = 0
    nodes: tuple[str, ...] = ()
    shut: tuple[str, ...] = ()
    container: bool = False
    wsl: bool = False
    paravirtual: bool = False
    nouveau: bool = False

    @property
    def gpus(self) -> int:
        """The number of GPUs that have a device file."""
        return sum(node[-1].isdigit() for node in self.nodes)

    @property
    def has_gpu(self) -> bool:
        """Whether there is any sign of an NVIDIA GPU."""
        return bool(self.module or self.cards or self.nodes or self.paravirtual)


def read_driver() -> NvidiaDriver:
    """Return the facts of the driver that this process sees."""
    names = (path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia(\d+|ctl|-uvm)", path.name))
    nodes = sorted(map(str, names))
    return NvidiaDriver(
        module=loaded_driver(text_of("/proc/driver/nvidia/version")),
        cards=sum(map(_is_card, Path("/sys/bus/pci/devices").glob("*"))),
        nodes=tuple(nodes),
        shut=tuple(node for node in nodes if not os.access(node, os.R_OK | os.W_OK)),
        container=any(Path(name).exists() for name in ("/.dockerenv", "/run/.containerenv")),
        wsl=is_wsl(text_of("/proc/sys/kernel/osrelease")),
        paravirtual=Path("/dev/dxg").exists(),
        nouveau=re.search(r"^nouveau ", text_of("/proc/modules"), re.MULTILINE) is not None,
    )


def _is_card(device: Path) -> bool:
    return text_of(device / "vendor").strip() == _VENDOR and text_of(device / "class").startswith(_DISPLAYS)
