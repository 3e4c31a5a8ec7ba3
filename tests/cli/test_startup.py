"""What every start of dsec pays for before it does anything."""

import re
import subprocess

from dsec_tool import BIN

# cmake/libraries.cmake says how to take a library in without linking it.
LIGHT = re.compile(r"lib(c|m)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+")


def test_the_program_is_linked_with_the_c_library_only():
    dynamic = subprocess.run(["readelf", "-dW", BIN / "dsec"], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert "libc.so.6" in needed
    assert [name for name in needed if not LIGHT.fullmatch(name)] == []
