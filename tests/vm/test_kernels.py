"""`dsec vm kernel` with Debian's kernel package, as it is and in other forms."""

import json
import subprocess
import tarfile

import pytest

NEEDED = ("boot/vmlinuz-", "drivers/virtio/", "drivers/block/virtio", "drivers/char/", "drivers/nvdimm/", "drivers/net/",
          "fs/erofs/", "fs/overlayfs/", "fs/ext4/", "net/", "lib/", "modules.builtin")


@pytest.fixture(scope="module")
def small_archive(kernel_package, tmp_path_factory):
    """A tar of what a guest may need, and little else."""
    place = tmp_path_factory.mktemp("kernel") / "kernel.tar"
    unpack = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", kernel_package], stdout=subprocess.PIPE)
    with tarfile.open(fileobj=unpack.stdout, mode="r|") as source, tarfile.open(place, "w") as target:
        for entry in source:
            if entry.isreg() and any(part in entry.name for part in NEEDED):
                target.addfile(entry, source.extractfile(entry))
    assert unpack.wait() == 0
    return place


def kernels(dsec) -> dict:
    return {kernel["name"]: kernel for kernel in map(json.loads, dsec.ok("vm", "kernel", "ls", "-o", "json").splitlines())}


def files(dsec) -> set:
    return {str(path.relative_to(dsec.home)) for path in (dsec.home / "vm").rglob("*")}


def test_a_package_an_archive_and_a_layer_give_the_same(dsec, kernel, small_archive):
    dsec.ok("import", "base/kernel:1", f"tar:{small_archive}")
    for name, source in (("archive", small_archive), ("layer", "base/kernel:1")):
        assert dsec.ok("vm", "kernel", "import", source, "--name", name) == name + "\n"
    found = kernels(dsec)
    assert sorted(found) == ["archive", "layer"]
    for each in found.values():
        assert (each["release"], each["modules"]) == (kernel["release"], kernel["modules"])
        with open(each["initramfs"], "rb") as one, open(kernel["initramfs"], "rb") as other:
            assert one.read() == other.read()
        with open(each["vmlinux"], "rb") as image:
            assert image.read(4) == b"\x7fELF"
    assert [kernel["modules"].index(name) for name in ("virtio", "virtio_ring", "virtio_blk")] == [0, 1, 6]

    dsec.ok("vm", "kernel", "rm", "archive")
    assert sorted(kernels(dsec)) == ["layer"]
    gone = dsec.run("vm", "kernel", "rm", "archive")
    assert gone.code == 1 and "there is no kernel 'archive'" in gone.err


@pytest.mark.parametrize("share, reason", [(0.0, "cannot unpack"), (0.001, "cannot unpack"), (0.5, "cannot unpack")])
def test_a_package_that_is_cut_off_leaves_nothing(dsec, kernel_package, work, share, reason):
    whole = kernel_package.read_bytes()
    (work / "cut.deb").write_bytes(whole[:int(len(whole) * share)])
    result = dsec.run("vm", "kernel", "import", work / "cut.deb")
    assert result.code == 1 and reason in result.err, str(result)
    assert files(dsec) <= {"vm/kernels", "vm/kernels/.lock"}


def test_a_kernel_that_lacks_what_guests_need_is_refused_by_name(dsec, small_archive, work):
    with tarfile.open(small_archive) as source, tarfile.open(work / "poor.tar", "w") as target:
        for entry in source:
            if not entry.name.endswith("/overlay.ko"):
                target.addfile(entry, source.extractfile(entry))
    result = dsec.run("vm", "kernel", "import", work / "poor.tar")
    assert result.code == 1 and "this kernel has no module 'overlay'" in result.err, str(result)
    assert kernels(dsec) == {}


@pytest.mark.parametrize("source, reason", [("./nothing.deb", "there is no file"), ("base/none:1", "no layer"),
                                            (".", "has no kernel")])
def test_what_is_no_kernel_is_told_as_such(dsec, source, reason):
    result = dsec.run("vm", "kernel", "import", source)
    assert result.code in (1, 2) and reason in result.err, str(result)


def test_a_name_that_is_none_is_refused(dsec):
    for name in ("../up", ".hidden", "a b"):
        result = dsec.run("vm", "kernel", "import", ".", f"--name={name}")
        assert result.code == 2 and "cannot be the name" in result.err, str(result)
