"""probe.py SCRIPT REQUEST RESULT: run one script, and write what it finds into the file RESULT.

A script has a function `probe(facts)`, which returns what `passed`, `failed` or `skipped` make of it. What it raises
is a failure, with its words for a reason.
"""

import json
import os
import sys
import traceback


def passed(expected, found):
    return {"outcome": "passed", "expected": expected, "found": found, "reason": ""}


def failed(expected, found, reason):
    return {"outcome": "failed", "expected": expected, "found": found, "reason": reason}


def skipped(reason):
    return {"outcome": "skipped", "expected": "", "found": "", "reason": reason}


def check(ok, expected, found, reason):
    """A check that has passed, or else failed for that reason."""
    return passed(expected, found) if ok else failed(expected, found, reason)


def near(one, other):
    """Whether two lists of numbers are the same but for rounding."""
    return len(one) == len(other) and all(abs(a - b) <= 1e-4 * max(1.0, abs(b)) for a, b in zip(one, other))


def load(path, name="probe"):
    """A function of a script. Executed here, not imported: `import.py` is no name of a module."""
    names = {"__file__": path, "__name__": "script"}
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), names)
    return names[name]


def main(script, request, result):
    with open(request) as file:
        facts = json.load(file)["facts"]
    try:
        found = load(script)(facts)
    except Exception as error:
        traceback.print_exc()
        found = failed("", "", "{0}: {1}".format(type(error).__name__, str(error).strip()[:1000]))
    with open(result + ".part", "w") as file:
        json.dump(found, file)
    os.rename(result + ".part", result)


if __name__ == "__main__":
    # Scripts import this module by its name; what they get is the same as what runs.
    sys.modules["probe"] = sys.modules["__main__"]
    main(*sys.argv[1:])
