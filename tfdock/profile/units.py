"""Parse amounts of memory and of time: `8GiB`, `90m`."""

from __future__ import annotations

MEMORY = r"\d{1,15}(\.\d{1,6})? ?[KMGT]i?B?"
DURATION = r"(?=\d)(?=.*[1-9])(\d{1,6}h)?(\d{1,6}m)?(\d{1,6}s)?"  #: Zero is invalid: a build needs memory and time.
AGE = r"\d{1,6}[mhdw]"

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """Return the bytes of `24GiB`, `24G`, `24 GB` (all binary, as `docker --memory` reads them)."""
    number = text.rstrip("KMGTiB ")
    unit = text[len(number) :].strip().rstrip("B").rstrip("i")
    return int(float(number) * _UNITS[unit])


def parse_seconds(text: str) -> int:
    """Return the seconds of `5h30m`."""
    seconds, number = 0, ""
    for character in text:
        if character.isdigit():
            number += character
        else:
            seconds += int(number) * {"h": 3600, "m": 60, "s": 1}[character]
            number = ""
    return seconds


def parse_age(text: str) -> int:
    """Return the seconds of `30d`."""
    return int(text[:-1]) * {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}[text[-1]]
