"""A registry added with --in-place: the kernel reads data where it lies, and only metadata is copied."""

import rootfs
from dsec_tool import Dsec


def test_a_sandbox_runs_on_data_that_stays_in_the_registry(dsec, work):
    elsewhere = Dsec(work / "elsewhere", work)
    elsewhere.ok("import", "base/box", f"tar:{rootfs.write_tar(work / 'base.tar')}")
    elsewhere.ok("publish", "base/box", "--to", f"file://{work}/registry")
    dsec.ok("registry", "add", "r", f"file://{work}/registry", "--in-place")
    assert dsec.ok("run", "base/box", "--", "sh", "-c", "echo from $((40 + 2))") == "from 42\n"

    layer = dsec.json("layer", "inspect", "base/box")[0]
    blobs = {blob["role"]: blob["digest"].removeprefix("sha256:") for blob in layer["manifest"]["images"][0]["blobs"]}
    stored = {path.name for path in (dsec.home / "store/blobs").rglob("*") if path.is_file()}
    assert layer["in_place"]
    assert blobs["meta"] in stored and blobs["data"] not in stored

    # gc lets go of the registry's file: nothing of it stays mounted.
    dsec.ok("layer", "rm", "base/box")
    dsec.ok("traj", "rm", "-a")
    dsec.ok("gc")
    assert not [path for path in (dsec.home / "store/blobs").rglob("*") if path.is_file()]
    assert (work / "registry/blobs/sha256" / blobs["data"][:2] / blobs["data"]).is_file()
