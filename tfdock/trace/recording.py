"""Read the results of a recording: the report on the script, and TensorFlow's profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdock.errors import ProfileError
from tfdock.host.foreign_json import Line
from tfdock.host.untrusted_folders import UntrustedPath

#: Name endings of TensorFlow 2's profiles, and of what `dockerfiles/trace/capture.py` writes of a session of 1.x.
_ENDINGS = (".xplane.pb", SESSION := "session.trace.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The report of `dockerfiles/trace/capture.py` on the script that it ran."""

    tensorflow: Line  #: The version of TensorFlow.
    steps: int  #: The number of steps in the profile.
    left_out: int  #: The number of steps before and after the recorded steps.
    calls: Mapping[Line, int]  #: Functions whose calls were the steps -> number of calls.
    own_steps: bool  #: Whether the script itself marks the steps, as Keras 2 does.
    own_profile: Line | None  #: The folder of a profile that the script made itself.


def check_script(words: Sequence[str]) -> None:
    """Raise ProfileError if these words name no script."""
    name = next(iter(words), "")
    if name != "-m" and not Path(name).is_file():
        raise ProfileError.of("source-missing", f"the script {name} does not exist", "check its path")
    if [*words] == ["-m"]:
        raise ProfileError.of("source-missing", "`-m` names no module", "name one: `-m mine.train`")


def profile_in(*places: Path) -> UntrustedPath:
    """Return the newest profile of the first place (folder or file) that has one. Raises ProfileError without one."""
    for place in (place.resolve() for place in places):
        root = UntrustedPath(place.parent, place.name)
        if place.is_file() and place.name.endswith(_ENDINGS):
            return root
        if place.is_file():
            message = f"{place} is not a profile, whose name ends with `{_ENDINGS[0]}`"
            fix = f"give the Python of the script first: `tfdock trace .venv {place.name}`"
            raise ProfileError.of("trace-missing", message, fix)
        # A discarded profiler session leaves an empty file. `/` has no name, and is not searched.
        found = (file for file in root.walk() if file.is_plain and file.status.st_size) if place.name else ()
        if files := [file for file in found if file.name.endswith(_ENDINGS)]:
            return root / max(files, key=lambda file: (file.status.st_mtime_ns, file.name)).name
    raise ProfileError.of(
        "trace-missing",
        f"there is no profile in {places[0]}: no file `*{_ENDINGS[0]}`",
        "give a folder that TensorFlow's profiler has written, or record a profile: `tfdock trace .venv train.py`",
    )
