"""The GPUs that TensorFlow uses, as it describes them (`..., name: Tesla V100, ..., compute capability: 7.0`)."""

import re

from probe import check


def probe(facts):
    from tensorflow.python.client import device_lib

    described = [one.physical_device_desc for one in device_lib.list_local_devices() if one.device_type == "GPU"]
    found = [
        {"name": part(r"name: ([^,]+)", one), "capability": part(r"capability: ([\d.]+)", one)} for one in described
    ]
    return check(bool(found), "a GPU", found, "TensorFlow found no GPU that it uses; its log says why")


def part(expression, text):
    match = re.search(expression, text)
    return match.group(1) if match else ""
