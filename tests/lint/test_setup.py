"""What `./dev` does where something is missing: packages are installed by root and named to anybody else, and a mkfs.erofs that
is too old, or known to be faulty, is passed over. Package tools are stand-ins here."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def machine(work):
    """Runs a shell command in the tree, on a machine whose packages and user are as told."""
    bin_, log = work / "bin", work / "log"
    bin_.mkdir()

    def program(name: str, script: str, where: Path = bin_) -> Path:
        where.mkdir(parents=True, exist_ok=True)
        (where / name).write_text("#!/bin/sh\n" + script + "\n")
        (where / name).chmod(0o755)
        return where / name

    def run(command: str, user: int = 0, installed: tuple = (), **env) -> subprocess.CompletedProcess:
        log.write_text("")
        program("id", f"echo {user}")
        program("dpkg-query", "for last; do :; done\ncase \" " + " ".join(installed) +
                " \" in *\" $last \"*) echo 'install ok installed' ;; *) exit 1 ;; esac")
        program("apt-get", f'echo "apt-get $*" >>{log}')
        program("apt-cache", "exit 0")
        full = {"PATH": f"{bin_}:/usr/bin:/bin", "HOME": str(work), "DSEC_CACHE_DIR": str(work / "cache"), **env}
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=full, capture_output=True, text=True, check=False,
                              timeout=60)
        done.called = log.read_text().splitlines()
        return done

    run.program = program
    run.bin = bin_
    return run


NEED = ". scripts/packages.sh; packages_mine='one two three'; need mine && echo there"


def test_anybody_is_told_exactly_what_to_install(machine):
    done = machine(NEED, user=1000, installed=("two",))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == ("error: packages are missing that this needs\n"
                           "  try: sudo apt-get update && sudo apt-get install --no-install-recommends one three \n")
    assert done.called == []


def test_root_gets_what_is_missing_and_no_more(machine):
    done = machine(NEED, installed=("two",))
    assert done.returncode == 0 and done.stdout == "there\n", done.stderr
    assert done.called == ["apt-get -q update", "apt-get -q install -y --no-install-recommends one three"]
    assert "installing: one three" in done.stderr
    assert machine(NEED, installed=("one", "two", "three")).called == []


def mkfs(machine, version: str, where: Path) -> Path:
    # 1.5 knows no -V; it prints its version with its usage, and fails.
    shown = f'[ "$1" = -V ] && {{ echo "mkfs.erofs (erofs-utils) {version}"; exit 0; }}; exit 1'
    old = f'[ "$1" = -V ] && exit 1; echo "mkfs.erofs {version}"; exit 1'
    return machine.program("mkfs.erofs", old if version == "1.5" else shown, where)


@pytest.mark.parametrize("version, good", [("1.5", False), ("1.8.7", False), ("1.8.8", False), ("1.8.10", False), ("1.9.2", False),
                                           ("1.9.3", True), ("1.9.10", True), ("1.10", True), ("2.0", True)])
def test_a_mkfs_erofs_is_taken_when_it_is_new_enough(machine, work, version, good):
    mkfs(machine, version, machine.bin)
    done = machine("scripts/erofs-utils", user=1000)
    if good:
        assert (done.returncode, done.stdout) == (0, f"{machine.bin}\n"), done.stderr
    else:
        assert done.returncode == 1 and done.stdout == ""
        assert f"mkfs.erofs of this machine: {version}; wanted: 1.9.3 or newer" in done.stderr
        assert "building erofs-utils needs packages" in done.stderr and "try: sudo apt-get install autoconf" in done.stderr
    assert done.called == []
    assert not (work / "cache").exists()


def test_the_newest_that_was_built_before_is_taken_and_one_that_is_named_first_of_all(machine, work):
    mkfs(machine, "1.5", machine.bin)
    for version in ("1.9.4", "1.9.10"):
        mkfs(machine, version, work / f"cache/erofs-utils-{version}/bin")
    assert machine("scripts/erofs-utils").stdout == f"{work}/cache/erofs-utils-1.9.10/bin\n"
    named = mkfs(machine, "1.9.3", work / "mine")
    assert machine("scripts/erofs-utils", DSEC_MKFS_EROFS=str(named)).stdout == f"{work}/mine\n"
    faulty = mkfs(machine, "1.8.7", work / "faulty")
    assert machine("scripts/erofs-utils", DSEC_MKFS_EROFS=str(faulty)).stdout == f"{work}/cache/erofs-utils-1.9.10/bin\n"


def test_where_no_suite_offers_a_new_one_that_is_said(machine):
    mkfs(machine, "1.5", machine.bin)
    wanted = ("autoconf automake dpkg-dev gcc libdeflate-dev liblz4-dev liblzma-dev libtool libzstd-dev make pkg-config "
              "uuid-dev zlib1g-dev").split()
    done = machine("scripts/erofs-utils", installed=tuple(wanted))
    assert done.returncode == 1 and done.stdout == ""
    assert "no suite of this distribution offers the source of erofs-utils 1.9.3 or newer (newest: none)" in done.stderr
    assert "name it in DSEC_MKFS_EROFS" in done.stderr
