"""read.py PROFILE FOLDER: let xprof read a profile, and write the output of each of its tools into a file in FOLDER.

PROFILE is a private copy, because xprof writes its caches beside it. A tool that fails prints why, and gets no file.
The timeline is written whole as `timeline.json.gz`, and shortened as `trace_viewer.json`, since it may have a million
events. The short one leaves out events and arguments that do not show how long something takes.
"""

import gzip
import json
import re
import sys
from pathlib import Path

from xprof.convert import raw_to_tool_data

TOOLS = ("overview_page", "framework_op_stats", "input_pipeline_analyzer", "kernel_stats", "memory_profile")
ARGUMENTS = ("hlo_op", "long_name", "name", "shape", "step_name", "step_num", "tf_function_call")
#: Prefixes of the names of events that only enclose others: the executor, its threads, stages of an eager call.
AROUND = (
    "EagerCopy", "EagerExecute", "EagerKernel", "Executor", "FunctionRun", "KernelAndDeviceFunc", "TFE_",
    "TensorHandle", "ThreadpoolListener", "ValidateInput",
)  # fmt: skip
#: The end of xprof's timeline. Its last event has no name, and Perfetto 52 reports such an event as lost data.
#: Perfetto reports lost data also if a compressed file ends with the events.
END = re.compile(rb"(,\s*\{\})?\s*\]\s*\}\s*$")


def main(profile, folder):
    for tool in TOOLS:
        data = answer(profile, tool)
        if data is not None:
            Path(folder, tool + ".json").write_bytes(data)
    timeline = answer(profile, "trace_viewer")
    if timeline is not None:
        whole = timeline[:-99] + END.sub(rb'],\n"otherData": {}}\n', timeline[-99:])
        Path(folder, "timeline.json.gz").write_bytes(gzip.compress(whole, 6, mtime=0))
        events = [reduced(event) for event in events_of(timeline.decode()) if told(event)]
        Path(folder, "trace_viewer.json").write_text(json.dumps({"traceEvents": events}))


def answer(profile, tool):
    data, _ = raw_to_tool_data.xspace_to_tool_data([profile], tool, {})
    return data.encode() if isinstance(data, str) else data


def events_of(text):
    """Yield the events one by one: all at once would take gigabytes."""
    decoder, place = json.JSONDecoder(), text.index("[", text.index('"traceEvents"')) + 1
    while True:
        while text[place] in ", \n\r\t":
            place += 1
        if text[place] == "]":
            return
        event, place = decoder.raw_decode(text, place)
        yield event


def told(event):
    if event.get("ph") == "X":
        return not event.get("name", "").startswith(AROUND)
    return event.get("name") == "process_name"


def reduced(event):
    arguments = event.get("args", {})
    return {**event, "args": {name: arguments[name] for name in ARGUMENTS if name in arguments}}


if __name__ == "__main__":
    main(*sys.argv[1:])
