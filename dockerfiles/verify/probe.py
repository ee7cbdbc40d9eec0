"""probe.py SCRIPT REQUEST RESULT: run one script, and write its result into the file RESULT.

A script has a function `probe(facts)`, which returns the result of `passed`, `failed` or `skipped`. An exception is a
failure; its text is the reason.
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
    """Return a check that has passed if `ok`, or else failed for this reason."""
    return passed(expected, found) if ok else failed(expected, found, reason)


def near(one, other):
    """Return whether two lists of numbers are equal except for rounding."""
    return len(one) == len(other) and all(abs(a - b) <= 1e-4 * max(1.0, abs(b)) for a, b in zip(one, other))


def load(path, name="probe"):
    """Return a function of a script. It is executed, because Python cannot import a module named `import`."""
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
    # Scripts import `probe`. They get this running module, not a second copy.
    sys.modules["probe"] = sys.modules["__main__"]
    main(*sys.argv[1:])
