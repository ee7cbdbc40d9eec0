"""ai_benchmark.py REQUEST: run the package ai-benchmark as its authors publish it, with a TensorFlow of today.

REQUEST is JSON: {"folder": where `scores.json` goes}. That file is {"tensorflow": version, "tests": [[number, model,
what, milliseconds, their standard deviation], ...], "inference", "training", "ai": the scores}. The package prints
each result as it comes.

The package is of 2019 and needs three things that have gone: the module `pkg_resources` of setuptools 81 and older,
`numpy.warnings` of NumPy 1.23 and older, and the LSTM cells of Keras 2, which the package `tf-keras` has. It would
also send the scores, and what it finds of this machine, to a server of its authors. Here it sends nothing.
"""

import json
import os
import sys
import types
import warnings
from pathlib import Path


def main(text):
    folder = json.loads(text)["folder"]
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import numpy

    vars(numpy).setdefault("warnings", warnings)
    try:
        import pkg_resources  # noqa: F401
    except ImportError:
        from packaging.version import parse

        sys.modules["pkg_resources"] = types.SimpleNamespace(parse_version=parse)
    import tensorflow as tf
    from ai_benchmark import AIBenchmark, utils

    utils.update_info = lambda *_: None
    tests = utils.TestConstructor().getTests()
    found = AIBenchmark(verbose_level=1).run()
    rows = []
    for test in tests:
        kinds = ["inference"] * len(test.inference) + ["training"] * len(test.training)
        for place, kind in enumerate(kinds, 1):
            number = f"{test.id}.{place}"
            result = found.test_results[number]
            rows.append([number, test.model, kind, float(result.mean), float(result.std)])
    scores = {"inference": found.inference_score, "training": found.training_score, "ai": found.ai_score}
    Path(folder, "scores.json").write_text(json.dumps({"tensorflow": tf.__version__, "tests": rows, **scores}))


if __name__ == "__main__":
    main(sys.argv[1])
