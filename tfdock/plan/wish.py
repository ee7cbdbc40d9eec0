"""Options that replace a profile, or change a named profile: `--gpu rtx5090 --python 3.12 --set xla=false`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfdock.errors import ProfileError
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.profile import yaml_nodes
from tfdock.profile.profile import Profile, unquoted_fields
from tfdock.types import TARGET_FIELDS

if TYPE_CHECKING:
    from tfdock.resolve.profile_changes import Change
    from tfdock.resolve.starter import AcceptedProfile, StarterDevices

NAMED = ("tensorflow", "python", "cuda")  #: Fields that have their own option.
#: Values that are not quoted: lists, maps, numbers, and YAML keywords.
_YAML = re.compile(r"[\[{].*[\]}]|true|false|null|[-+]?\d+(\.\d+)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Wish:
    """GPUs by name, and fields of a profile (`resources.memory`) with their values as text."""

    gpus: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any option."""
        return bool(self.gpus or self.fields)

    @property
    def words(self) -> str:
        """The wish as options, in place of a profile's name: `--gpu rtx5090 --python 3.12`."""
        named = ["--gpu", ",".join(self.gpus)] if self.gpus else []
        for name, value in self.fields.items():
            named += [f"--{name}", value] if name in NAMED else ["--set", f"{name}={value}"]
        return shlex.join(named)

    @property
    def source(self) -> dict[str, str]:
        """The fields of the source, such as `tensorflow.patches`."""
        return {name: value for name, value in self.fields.items() if name.startswith("tensorflow.")}

    @property
    def release(self) -> str | None:
        """The release that the wish names; None if it names none."""
        return self.fields.get("tensorflow", self.source.get("tensorflow.release"))

    def profile(
        self, knowledge: KnowledgeBase, local: Sequence[str], machine: str, *, allow_untested: bool
    ) -> AcceptedProfile:
        """Return a profile for the wish, as `init` writes it; raises ProfileError and Incompatible.

        Its source is the release's own; `over` sets another source. `local` are this machine's GPUs, which replace
        the word `local`; `machine` is this machine's CPU.
        """
        from tfdock.resolve.starter import starter  # here: most commands name a profile

        if not self.gpus:
            fix = "name a profile that these options change, or a GPU: `--gpu rtx5090`, or `--gpu cpu` for none"
            raise ProfileError.of("wish-without-gpu", f"`{self.words}` does not name a GPU", fix)
        lines = {name: value for name, value in self.fields.items() if name not in {"tensorflow", *self.source}}
        devices = self.devices(knowledge, local)
        return starter(
            knowledge,
            devices,
            tensorflow=self.release,
            python=lines.pop("python", None),
            more=_yaml_values({**({"allow_untested": "true"} if allow_untested else {}), **lines}),
            versions={name: self.fields[name] for name in devices.accelerator.components if name in self.fields},
            machine=machine,
            describe=self.describe,
        )

    def describe(self, change: Change, profile: Profile) -> str:
        """Return a change of the profile as options: `--cuda 12.8.0 --set xla=false`; options to remove come last."""
        from tfdock.resolve.profile_changes import as_yaml  # here: only a refusal needs it

        gone = [name for name, value in change.items() if value is None and name in self.fields]
        named = {name: value for name, value in change.items() if name not in (*gone, *DEVICES, "allow_untested")}
        texts, _ = as_yaml(named, profile)
        fields = {name: value if isinstance(value, str) else texts[name] or "null" for name, value in named.items()}
        if profile.release_field in fields:
            fields = {"tensorflow": fields.pop(profile.release_field), **fields}
        devices = {*change} & {*DEVICES}  # one option sets them all
        listed = next((value for name in DEVICES if isinstance(value := change.get(name), list)), ["cpu"])
        # The search would name no GPU, which options cannot.
        nameless = bool(devices) and tuple(listed) == self.gpus
        words = Wish(tuple(listed) if devices and not nameless else (), fields).words
        words = f"{words} --allow-untested".lstrip() if change.get("allow_untested") else words
        left = Wish(fields={name: self.fields[name] for name in gone}).words
        other = [f"name a GPU in place of `{Wish(self.gpus).words}`"] if nameless else []
        return " and ".join([*([f"`{words}`"] if words else []), *other, *([f"leave out `{left}`"] if left else [])])

    def over(self, name: str, release: str, knowledge: KnowledgeBase, local: Sequence[str]) -> str:
        """Return a profile that extends the named profile and sets the fields of the wish; raises ProfileError.

        `release` is the release of the named profile. It is written too if the wish sets another field of the source.
        """
        from tfdock.resolve.starter import device_field, profile_text  # here, as above

        fields = {"extends": json.dumps(name, ensure_ascii=False)}
        if self.gpus:
            devices = self.devices(knowledge, local)
            # Remove the profile's own devices, and the versions and compilers of other accelerators.
            gone = sorted(({*knowledge.components} - {*devices.accelerator.components}) & {*Profile.model_fields})
            gone += [] if devices.accelerator.compilers else ["compiler"]
            fields |= dict.fromkeys(("accelerator", "gpus", *gone), "null")
            fields |= device_field(knowledge, devices, self.release or release)
        source = {"tensorflow.release": release} if self.source else {}
        return profile_text({**fields, **_yaml_values({**source, **self.fields})})

    def devices(self, knowledge: KnowledgeBase, local: Sequence[str]) -> StarterDevices:
        """Return the devices of the GPUs; raises ProfileError."""
        from tfdock.resolve.starter import devices_of  # here, as above

        if "local" in self.gpus and not local:
            fix = "give the GPU: `--gpu rtx3080`, or `--gpu cpu`; for `local`, `nvidia-smi` or `rocminfo` must work"
            raise ProfileError.of("gpu-local-none", "`--gpu local` found no GPU on this machine", fix)
        words = [word for name in self.gpus for word in (local if name == "local" else [name])]
        return devices_of(knowledge, words)


NO_WISH = Wish()
DEVICES = ("gpus", "accelerator", *TARGET_FIELDS)  #: Fields that `--gpu` sets.


def wish_of(*, gpu: Sequence[str] | None, sets: Sequence[str] | None, **fields: str | None) -> Wish:
    """Return the wish that a command's options express; raises ProfileError."""
    said = {name: value for name, value in fields.items() if value is not None}
    for name in (name for name, value in said.items() if not value.strip()):
        raise ProfileError.of("wish-malformed", f"`--{name}` is empty", "give a version, or remove the option")
    for text in sets or ():
        name, equals, value = text.partition("=")
        if not (equals and value.strip() and re.fullmatch(r"[A-Za-z][\w-]*(\.[\w-]+){0,3}", name, re.ASCII)):
            fix = "write a profile's field and its value: `--set resources.memory=16GiB`, `--set xla=false`"
            raise ProfileError.of("wish-malformed", f"`--set {text}` is not `FIELD=VALUE`", fix)
        # A field and a part of this field cannot both be set.
        twice = [other for other in said if f"{other}.".startswith(f"{name}.") or f"{name}.".startswith(f"{other}.")]
        release = name.startswith("tensorflow.") and twice == ["tensorflow"] and name != "tensorflow.release"
        own = name in ("extends", "schema")
        if (twice and not release) or own or (gpu and name.partition(".")[0] in DEVICES):
            why = "can be set only in a profile" if own else "is set by another option"
            fix = "write it into the profile" if own else "set the field once"
            raise ProfileError.of("wish-malformed", f"`--set {text}`: `{name}` {why}", fix)
        said[name] = value.strip()
        if _YAML.fullmatch(said[name]):
            yaml_nodes.parse(said[name], f"--set {text}")  # later, the error would have no line
    if said.get("tensorflow", "").startswith("{"):
        fix = "`--set 'tensorflow.patches=[fix.patch]'`, `--set tensorflow.ref=master`"
        raise ProfileError.of("wish-malformed", "`--set` sets the fields of `tensorflow` one by one", fix)
    # If other fields of the source are set, the release becomes a field of the source too.
    if "tensorflow" in said and any(name.startswith("tensorflow.") for name in said):
        said = {("tensorflow.release" if name == "tensorflow" else name): value for name, value in said.items()}
    words = [word.strip() for option in gpu or () for word in option.split(",") if word.strip()]
    if gpu and not words:
        message, fix = "`--gpu` names no GPU", "give a GPU: `--gpu rtx3080`, or `--gpu cpu` for none"
        raise ProfileError.of("gpu-unknown", message, fix)
    return Wish(tuple(words), said)


def _yaml_values(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each top field of a profile; text is quoted, since to YAML `3.10` is a number."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        *path, last = name.split(".")
        inner = tree
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = value if _YAML.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    # A map in one line is a document even without fields.
    for name in unquoted_fields(_flow(tree)):
        *path, last = name.split(".")
        inner = tree
        for step in path:
            inner = inner.get(step, {}) if isinstance(inner, dict) else {}
        # For a whole list or map, the profile reader reports the number of the entry.
        if isinstance(inner, dict) and last in inner:
            inner[last] = json.dumps(inner[last])
    return {name: _flow(value) for name, value in tree.items()}


def _flow(value: str | Mapping[str, Any]) -> str:
    if isinstance(value, str):
        return value
    return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
