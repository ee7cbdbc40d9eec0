"""The least that looking into a wheel can cost with Python alone: its shared libraries, inflated once by zlib."""

import struct
import sys
import zipfile
import zlib
from pathlib import Path

with zipfile.ZipFile(sys.argv[1]) as wheel, Path(sys.argv[1]).open("rb") as file:
    for item in wheel.infolist():
        if ".so" not in item.filename.rpartition("/")[2]:
            continue
        file.seek(item.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        for start in range(0, item.compress_size, 1 << 16):
            packed = file.read(min(1 << 16, item.compress_size - start))
            while packed:
                inflater.decompress(packed, 1 << 20)
                packed = inflater.unconsumed_tail
