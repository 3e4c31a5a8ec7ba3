"""Tests here start virtual machines: root, QEMU, and nothing of them left on the host afterwards."""

import itertools
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
import rootfs
import tiny_disk
from dsec_tool import ROOT, Dsec
from guest_machine import Machine, make_disk, make_images
from on_backend import OnBackend


@pytest.fixture(autouse=True, scope="session")
def must_be_root():
    if os.geteuid() != 0:
        pytest.exit("the tests in tests/vm need root: sudo ./dev test vm", returncode=3)


@pytest.fixture(scope="session")
def kernel_package() -> Path:
    return Path(subprocess.run([ROOT / "scripts/guest-kernel"], check=True, text=True, capture_output=True).stdout.strip())


@pytest.fixture(scope="session")
def kernel_home(kernel_package):
    """A DSEC_HOME that has the kernel of guests, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="dsec-vm-") as folder:
        Dsec(Path(folder) / "home", Path(folder)).ok("vm", "kernel", "import", kernel_package)
        yield Path(folder) / "home"


@pytest.fixture(scope="session")
def kernel(kernel_home) -> dict:
    return json.loads(Dsec(kernel_home, kernel_home.parent).ok("vm", "kernel", "ls", "-o", "json"))


@pytest.fixture(scope="session")
def images():
    with tempfile.TemporaryDirectory(prefix="dsec-vm-") as folder:
        yield make_images(Path(folder))


@pytest.fixture(scope="module")
def machines(kernel, images):
    """Starts a machine with the images and a disk of its own; all end with the module."""
    started, numbers = [], itertools.count()
    with tempfile.TemporaryDirectory(prefix="dsec-vm-") as folder:

        def start(disk: bool = True, **options) -> Machine:
            place = Path(folder) / str(next(numbers))
            place.mkdir()
            drives = {name: images[name] for name in ("base", "over", "over-data")}
            if disk:
                make_disk(place / "disk")
                drives["disk"] = place / "disk"
            started.append(Machine(kernel, place, drives | options.pop("drives", {}), **options))
            return started[-1]

        yield start
        for machine in started:
            machine.stop()


@pytest.fixture
def microvms(work, kernel_home):
    """`dsec` whose sandboxes are microVMs, with the base layer base/box. What is left of them fails the test."""
    tool = OnBackend(work / "home", work, "microvm")
    rootfs.import_base(tool)
    tool.give_kernel(kernel_home)
    yield tool
    tool.clean_up()


@pytest.fixture
def fullvms(work, kernel_home):
    """`dsec` whose sandboxes are full VMs, with base/tiny, a disk of one sector that says what it does."""
    tool = OnBackend(work / "home", work, "fullvm")
    tool.give_kernel(kernel_home)
    tool.ok("import", "base/tiny", f"disk:{tiny_disk.make(work / 'tiny.img')}")
    yield tool
    tool.clean_up()
