"""Images that run on demand without having been converted: their contents are read out of their own plain layers."""

import hashlib
import re

import pytest
import rootfs
import sandbox_tree
from dsec_tool import Dsec
from fault_proxy import Fault, FaultProxy
from image_layers import everything, noise
from oci_registry import DockerRegistry

pytestmark = [pytest.mark.needs("registry_servers"), pytest.mark.guest_slow("the kernel does not decide where contents lie")]

MIB = 1 << 20
BIG = noise(24 * MIB, 9)
SUM = hashlib.sha256(BIG).hexdigest()


class Image:
    """An image with plain layers behind a proxy, indexed by another host as base/box."""

    def __init__(self, work):
        self.work = work
        self.server = DockerRegistry(work / "server")
        self.proxy = FaultProxy(self.server.port)
        root = rootfs.write_tar(work / "root.tar", files={"big": BIG}).read_bytes()
        self.layers = [root, *everything()]
        self.server.push_image("team/box", "1", self.layers, plain=True)
        self.author = Dsec(work / "author", work)
        self.done = self.author.json("registry", "index", "base/box", f"docker://{self.server.host}/team/box:1")
        self.url = f"oci://{self.proxy.host}/team/box"
        (work / "config.yaml").write_text(f"on_demand: {{timeout: 5s}}\nhosts: {{'{self.proxy.host}': {{plain_http: true}}}}\n")
        self.proxy.forget()

    @property
    def digests(self) -> list[str]:
        return [layer["digest"] for layer in self.server.manifest("team/box", "1")["layers"]]

    def bytes_asked(self) -> int:
        """Of the layers of the image, by what the requests say."""
        total = 0
        for asked in self.proxy.asked:
            if asked.method != "GET" or asked.path.split("/")[-1] not in self.digests:
                continue
            first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers["Range"]).groups()
            total += int(last) - int(first) + 1
        return total

    def stop(self):
        self.proxy.stop()
        self.server.stop()


@pytest.fixture
def image(work):
    image = Image(work)
    yield image
    image.stop()


def read_at(at: int) -> list[str]:
    return ["dd", "if=/big", "of=/dev/null", "bs=4096", "count=1", f"skip={at // 4096}"]


def test_an_image_runs_without_having_been_converted_and_little_of_it_is_fetched(dsec, image):
    size = sum(len(layer) for layer in image.layers)
    assert dsec.ok("run", "--on-demand", "--registry", image.url, "base/box", "--", "cat", "/usr/small") == "another\n"
    assert 0 < image.bytes_asked() < size / 4, (image.bytes_asked(), size)
    layer = dsec.json("layer", "inspect", "base/box")[0]
    assert layer["on_demand"] and layer["digest"] == image.done["digest"]
    # What is read twice is fetched once.
    before = image.bytes_asked()
    sandbox = dsec.ok("create", "base/box").strip()
    assert dsec.ok("exec", sandbox, "--", "cat", "/usr/small") == "another\n"
    assert image.bytes_asked() == before
    assert SUM in dsec.ok("exec", sandbox, "--", "sha256sum", "/big")
    # More than half of it has been read, so that the rest comes, too: nothing is asked for twice.
    assert len(BIG) <= image.bytes_asked() - before
    assert image.bytes_asked() < size * 1.05


def test_an_image_is_the_same_tree_as_it_lies_there_and_converted(dsec, work, image):
    other = Dsec(work / "other", work)
    other.ok("import", "base/box", f"docker://{image.server.host}/team/box:1")
    dsec.ok("pull", "--on-demand", "base/box", "--from", image.url)
    here, there = dsec.ok("create", "base/box").strip(), other.ok("create", "base/box").strip()
    lazy, converted = sandbox_tree.walk(dsec, here), sandbox_tree.walk(other, there)
    assert "old/new" in lazy and "old/a" not in lazy and "usr/gone" not in lazy
    assert len(lazy["usr/second"][-1]) == 3 and lazy["sparse"][3] == 5_000_000
    assert sandbox_tree.differences(lazy, converted) == []
    other.ok("rm", "--force", there)
    # All has been read, so that it is local from now on; what needs it whole finds it.
    exported = [host.ok("layer", "export", "base/box", "--out", host.home / "out.tar") for host in (dsec, other)]
    assert len(exported) == 2
    assert (dsec.home / "out.tar").read_bytes() == (other.home / "out.tar").read_bytes()


def test_a_layer_of_the_image_that_lies_or_goes_is_an_error_and_is_named(dsec, image):
    sandbox = dsec.ok("create", "--on-demand", "--registry", image.url, "base/box").strip()
    dsec.ok("exec", sandbox, "--", "md5sum", "/bin/busybox")
    root = image.digests[0]
    log = dsec.home / "run/loader.log"

    def fails(at: int):
        result = dsec.run("exec", sandbox, "--", *read_at(at))
        assert result.code != 0 and "Input/output error" in result.err, str(result)
        return log.read_text()

    alter = lambda method, path, count: Fault(alter=True) if path.endswith(root) and method == "GET" else None
    image.proxy.faults = alter
    told = fails(12 * MIB)
    assert "are not those of the layer" in told and "layer base/box" in told and image.url in told
    image.proxy.faults = lambda method, path, count: None
    dsec.ok("exec", sandbox, "--", *read_at(12 * MIB))
    # Of another size than the index says.
    file = image.server.blob_file(root)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1024])
    assert "bytes instead of" in fails(16 * MIB)
    file.write_bytes(whole)
    dsec.ok("exec", sandbox, "--", *read_at(16 * MIB))
    assert image.server.ask("DELETE", f"/v2/team/box/blobs/{root}")[0] == 202
    assert f"cannot read what lies in layer {root} of the image" in fails(20 * MIB)


def test_an_index_that_leads_elsewhere_gives_errors_and_no_other_bytes(dsec, image):
    tag = next(tag for tag in image.server.tags("team/box") if tag.startswith("index-"))
    manifest = image.server.manifest("team/box", tag)
    status, _, content = image.server.ask("GET", f"/v2/team/box/blobs/{manifest['layers'][0]['digest']}")
    assert status == 200
    dsec.ok("pull", "--on-demand", "base/box", "--from", image.url)
    # The first run begins 512 bytes behind where its file does: all that follows in that layer is wrong.
    runs = 64 + 40 * int.from_bytes(content[12:16], "little")
    shifted = bytearray(content)
    at = runs
    for _ in range(3):
        while shifted[at] & 0x80:
            at += 1
        at += 1
    assert shifted[at] & 0x80
    number, length = 0, 0
    while True:
        byte = shifted[at + length]
        number |= (byte & 0x7f) << (7 * length)
        length += 1
        if not byte & 0x80:
            break
    number += 1024
    encoded = bytes((number >> (7 * i) & 0x7f) | (0x80 if i < length - 1 else 0) for i in range(length))
    shifted[at:at + length] = encoded
    manifest["layers"][0] = {"mediaType": manifest["layers"][0]["mediaType"],
                             **image.server.push_blob("team/box", bytes(shifted))}
    image.server.push_manifest("team/box", tag, manifest)
    result = dsec.run("run", "base/box", "--", "cat", "/usr/small")
    assert result.code != 0 and result.out == "", str(result)
    told = (dsec.home / "run/loader.log").read_text()
    assert "are not those of the layer" in told or "ends beyond its part" in told, told
    # The right one heals what the loader has.
    image.author.ok("registry", "index", "base/box", f"docker://{image.server.host}/team/box:1")
    assert dsec.ok("run", "base/box", "--", "cat", "/usr/small") == "another\n"


def test_what_a_command_reads_of_an_image_can_be_fetched_first(dsec, image):
    told = dsec.json("registry", "trace", "--registry", image.url, "base/box", "--", *read_at(4 * MIB))
    assert told["layers"][0]["published"] and told["fetched"] < told["bytes"] / 4
    image.proxy.forget()
    dsec.ok("pull", "--on-demand", "base/box", "--from", image.url)
    assert any("/prefetch-" in asked.path for asked in image.proxy.asked)
    assert dsec.ok("run", "base/box", "--", "cat", "/usr/small") == "another\n"
