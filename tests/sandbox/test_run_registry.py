"""Commands whose layers come from an OCI registry, which the run itself pulls: wholly, and on demand."""

import pytest
import rootfs
from dsec_tool import Dsec
from oci_registry import DockerRegistry

pytestmark = [pytest.mark.needs("registry_servers"), pytest.mark.guest_slow("the kernel does not decide where layers come from")]

TEXT = b"from the registry\n" * 40_000
# Nobody reads it: what is loaded on demand has not come wholly in the end.
REST = b"".join(number.to_bytes(8, "big") for number in range(1 << 20))


@pytest.fixture
def published(dsec, work):
    """A registry with a layer that only another host has: its URL, and the layer."""
    author = Dsec(work / "author", work)
    author.ok("import", "base/box", f"tar:{rootfs.write_tar(work / 'base.tar', files={'text': TEXT, 'rest': REST})}")
    (work / "tool").mkdir()
    (work / "tool/said").write_text("by a toolkit\n")
    author.ok("import", "toolkit/said", "dir:tool", "--to", "/opt")
    server = DockerRegistry(work / "server")
    url = f"oci://{server.host}/team/layers"
    author.ok("publish", "base/box", "toolkit/said", "--to", url)
    yield url, author.json("layer", "inspect", "base/box")[0]["digest"]
    server.stop()


READ = ["sh", "-c", "cat /opt/said; wc -c < /text"]


@pytest.mark.parametrize("how", [[], ["--on-demand"]], ids=["wholly", "on-demand"])
def test_a_run_pulls_its_layers_from_an_oci_registry(dsec, published, how):
    url, digest = published
    assert dsec.ok("run", *how, "--registry", url, "base/box", "toolkit/said", "--", *READ) == f"by a toolkit\n{len(TEXT)}\n"
    layer = dsec.json("layer", "inspect", "base/box")[0]
    assert layer["digest"] == digest
    assert bool(layer.get("on_demand")) == bool(how)
    # From then on the tag is here, and the registry is not asked.
    assert dsec.ok("run", "base/box", "toolkit/said", "--", "cat", "/opt/said") == "by a toolkit\n"


def test_a_run_takes_a_layer_of_an_oci_registry_by_digest_and_says_what_is_not_there(dsec, published):
    url, digest = published
    assert dsec.ok("run", "--registry", url, digest, "--", "sh", "-c", "wc -c < /text") == f"{len(TEXT)}\n"
    told = dsec.fails(125, "run", "--registry", url, "base/none", "--", "true")
    assert "base/none" in told and url.removeprefix("oci://") in told, told
