"""read.py PROFILE FOLDER: let xprof read a profile, and write what its tools say into a folder, a file each.

PROFILE is a copy of its own: xprof writes its caches beside it. A tool that fails leaves no file; why, it prints.
"""

import sys
from pathlib import Path

from xprof.convert import raw_to_tool_data

TOOLS = (
    "overview_page",
    "framework_op_stats",
    "input_pipeline_analyzer",
    "kernel_stats",
    "memory_profile",
    "trace_viewer",
)


def main(profile, folder):
    for tool in TOOLS:
        data, _ = raw_to_tool_data.xspace_to_tool_data([profile], tool, {})
        if data is not None:
            Path(folder, tool + ".json").write_bytes(data.encode() if isinstance(data, str) else data)


if __name__ == "__main__":
    main(*sys.argv[1:])
