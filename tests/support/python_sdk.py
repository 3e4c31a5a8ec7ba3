"""Where the Python SDK is, and homes with what its tests make sandboxes of."""

import sys
from pathlib import Path

import leftovers
import rootfs
from contract_proxy import Contract
from dsec_tool import ROOT, Dsec

SDK = ROOT / "sdk/python"
sys.path.insert(0, str(SDK / "src"))

CONTRACT = Contract()
PRESETS = "presets: {pypi: [pypi.test], npm: [npm.test]}\n"


def home_with_box(place: Path) -> Dsec:
    tool = Dsec(place / "home", place)
    (place / "config.yaml").write_text(PRESETS)
    rootfs.import_base(tool, files={"srv/index.html": "hello\n"})
    return tool


def end_home(tool: Dsec) -> None:
    for sandbox in leftovers.sandboxes_of(tool.home):
        tool.run("rm", "-f", sandbox)
    collected = tool.run("gc")
    faults = leftovers.sweep(tool.home)
    assert not faults, "left on the host after gc:\n" + "\n".join(faults) + f"\n{collected}"
