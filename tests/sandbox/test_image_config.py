"""What an image says of its commands holds when it is run: environment, entrypoint, command, user, directory, signal."""

import hashlib
import json
import tarfile

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("what an image says is the same on any kernel")

SCRIPT = "echo $GREETING $1 $2; id -un; pwd"
CONFIG = {"Env": ["GREETING=hello", "TZ=EST5EDT"], "Entrypoint": ["/bin/sh", "-c"], "Cmd": [SCRIPT, "sh", "of", "image"],
          "User": "user", "WorkingDir": "/srv/made", "StopSignal": "SIGUSR1", "ExposedPorts": {"80/tcp": {}},
          "Labels": {"team": "demo"}}


@pytest.fixture
def image(dsec, work) -> str:
    """An OCI archive that was written by nobody's code but this, imported."""
    layout = work / "layout"
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, kind: str) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    tar = rootfs.write_tar(work / "root.tar").read_bytes()
    config = {"os": "linux", "architecture": "amd64", "config": CONFIG,
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}"]}}
    manifest = {"schemaVersion": 2, "config": blob(json.dumps(config).encode(), "config.v1+json"),
                "layers": [blob(tar, "layer.v1.tar")]}
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), "manifest.v1+json")]}
    (layout / "index.json").write_text(json.dumps(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    with tarfile.open(work / "image.tar", "w") as archive:
        archive.add(layout, arcname=".")
    dsec.ok("import", "base/image", "oci-archive:image.tar")
    return "base/image"


def test_an_imported_image_runs_as_it_says(dsec, image):
    assert dsec.ok("run", image) == "hello of image\nuser\n/srv/made\n"
    # A command replaces the image's, not its entrypoint; flags win over both.
    assert dsec.ok("run", image, "--", "echo $GREETING; date +%Z") == "hello\nEST\n"
    assert dsec.ok("run", "-e", "GREETING=bye", "-u", "root", "-w", "/", image) == "bye of image\nroot\n/\n"
    config = dsec.json("layer", "inspect", image)[0]["manifest"]["config"]
    assert config["labels"] == {"team": "demo"} and config["exposed_ports"] == ["80/tcp"]


def test_stop_sends_the_signal_that_the_image_names(dsec, image):
    dsec.ok("run", "-d", "--name", "box", image, "--", "trap 'echo stopped; exit 9' USR1; echo ready; while :; do sleep 0.05; done")
    while "ready" not in dsec.ok("logs", "box"):
        pass
    dsec.ok("stop", "box")
    assert dsec.ok("logs", "box") == "ready\nstopped\n"
    assert dsec.run("wait", "box").code == 9
