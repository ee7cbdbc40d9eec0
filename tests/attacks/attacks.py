"""The attacks of a source or of a base image on the host: which boundary, what is planted, what must follow."""

from __future__ import annotations

from dataclasses import dataclass

from build.harness import Json

from .plants import CROWD, HOLES, KEPT, NEEDED, PROOFS, TEXTS, VERIFY, Plant, in_rows
from .rig import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Plants that are tried in one build. `tolerated`: the wheel is published all the same, whole."""

    name: str
    boundary: str
    plants: tuple[Plant, ...]
    tolerated: bool = False


def _all() -> list[Attack]:
    found = [Attack(name=name, boundary="T5, T6", plants=tuple(plants), tolerated=True) for name, plants in in_rows()]
    found.append(Attack(name="proofs", boundary="T5, T6", plants=PROOFS, tolerated=True))
    found.append(Attack(name="verify", boundary="T6", plants=VERIFY, tolerated=True))
    found.append(Attack(name="holes", boundary="T5", plants=HOLES, tolerated=True))
    found.append(Attack(name="crowd", boundary="T5", plants=CROWD, tolerated=True))
    found.append(Attack(name="kept", boundary="T7", plants=KEPT, tolerated=True))
    for path, kind, aim in NEEDED:
        name = f"{path}-{kind}-{aim}".replace("/", "-").replace("\n", "-")
        phase = "compile" if kind == "swapped" else "last"
        found.append(Attack(name=name, boundary="T5, T6", plants=(Plant(phase, "staging", path, kind, aim),)))
    for number, (path, text) in enumerate(TEXTS):
        plants = (Plant("last", "staging", path, "text", text),)
        found.append(Attack(name=f"text-{number}", boundary="T5", plants=plants))
    return found


ATTACKS = {attack.name: attack for attack in _all()}


def orders(there: Range) -> dict[str, Json]:
    """What the attacker's program is told, by the name of the attack."""
    wheel, socket = there.wheel.name, there.host.removeprefix("unix://")
    found: dict[str, Json] = {"telling": {"plants": [], "wheel": wheel}}
    for attack in ATTACKS.values():
        plants = []
        for plant in attack.plants:
            order = plant.order(there.victims, socket)
            order["path"] = order["path"].replace("WHEEL", wheel)
            order["target"] = order["target"].replace("WHEEL", wheel)
            plants.append(order)
        found[attack.name] = {"plants": plants, "wheel": wheel}
    return found
