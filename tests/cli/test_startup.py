"""What every start of dsec pays for before it does anything."""

import re
import subprocess

from dsec_tool import BIN

# cmake/libraries.cmake says how to take a library in without linking it.
LIGHT = re.compile(r"lib(c|m)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+")


def test_what_enters_sandboxes_needs_no_library_and_is_small():
    segments = subprocess.run(["readelf", "-lW", BIN / "dsec-init"], capture_output=True, text=True, check=True).stdout
    assert "LOAD" in segments and "INTERP" not in segments and "DYNAMIC" not in segments
    rows = [line.split() for line in segments.splitlines() if line.split()[:1] == ["LOAD"]]
    from_file, in_memory = (sum(int(row[column], 16) for row in rows) for column in (4, 5))
    assert from_file < 160 << 10, segments
    # Buffers of machines' keepers and of the agent in a guest, and room for blocks: pages that are touched when they are used.
    assert in_memory < 960 << 10, segments


def test_the_program_is_linked_with_the_c_library_only():
    dynamic = subprocess.run(["readelf", "-dW", BIN / "dsec"], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert "libc.so.6" in needed
    assert [name for name in needed if not LIGHT.fullmatch(name)] == []
