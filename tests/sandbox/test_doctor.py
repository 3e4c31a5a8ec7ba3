"""`dsec doctor` on the host that the tests run on: as root, as anybody, and as an unprivileged CI container sees it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from dsec_tool import BIN


def abilities(report: dict) -> dict[str, bool]:
    return {ability["what"].split()[0].rstrip(","): ability["works"] for ability in report["abilities"]}


def check(report: dict, name: str) -> dict:
    return next(each for each in report["checks"] if each["name"] == name)


def test_root_of_this_host_can_do_everything(dsec):
    result = dsec.run("doctor", "-o", "json")
    report = json.loads(result.out)
    assert all(abilities(report).values()), result
    for each in report["checks"]:
        assert each["status"] in ("ok", "warn"), each
        assert each["found"]
        assert each["status"] == "ok" or each["mend"], each
    assert result.code == 0


@pytest.fixture
def anybody(work):
    """Runs dsec with a prefix, from a place that every user can read."""
    os.chmod(work, 0o755)
    place = work / "bin"
    place.mkdir()
    for name in ("dsec", "dsec-init"):
        shutil.copy(BIN / name, place / name)
    home = work / "anybody"
    home.mkdir()
    os.chown(home, 65534, 65534)

    def run(*prefix: str) -> tuple[int, dict]:
        env = {"PATH": os.environ["PATH"], "DSEC_HOME": str(home), "HOME": str(home), "LANG": "C.UTF-8"}
        if "DSEC_MKFS_EROFS" in os.environ:
            env["DSEC_MKFS_EROFS"] = os.environ["DSEC_MKFS_EROFS"]
        done = subprocess.run([*prefix, str(place / "dsec"), "doctor", "-o", "json"], env=env, capture_output=True,
                              text=True, check=False, timeout=60)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


@pytest.mark.guest_slow("capabilities are alike on any kernel")
def test_without_root_it_says_what_works_and_that_sudo_helps(anybody, work):
    code, report = anybody("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    assert code == 1
    can = abilities(report)
    assert can["inspect"]
    assert not can["run"] and not can["mount"]
    assert check(report, "root")["status"] == "fail"
    assert "sudo" in check(report, "root")["mend"]
    # The same fault is not explained over and over.
    assert check(report, "EROFS")["mend"] == "see permissions: root"
    assert os.listdir(work / "anybody") == []


@pytest.mark.guest_slow("capabilities are alike on any kernel")
def test_the_default_capabilities_of_a_container_are_recognised(anybody):
    code, report = anybody("setpriv", "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,"
                           "+setpcap,+net_bind_service,+sys_chroot,+setfcap", "env", "container=docker")
    assert code == 1
    assert report["place"] == "an unprivileged container (docker)"
    root = check(report, "root")
    assert "CAP_SYS_ADMIN" in root["found"] and "--privileged" in root["mend"]
    assert abilities(report)["inspect"]
    assert not abilities(report)["run"]


def test_root_of_a_user_namespace_is_told_that_it_is_none(anybody):
    code, report = anybody("unshare", "--user", "--map-root-user")
    assert code == 1
    assert check(report, "root")["status"] == "fail"
    assert not abilities(report)["run"]
