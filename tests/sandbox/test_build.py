"""dsec build with steps that run: what a step leaves becomes the layer, cached, scrubbed and without traces of dsec."""

import json
import time

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("builds say nothing of a kernel that other tests do not")

YAML = """\
version: 1
layers:
  workspace/w:
    on: base/box
    steps:
      - copy: {from: files, to: /srv/}
      - run: cat /srv/a > /srv/b && rm /etc/group && mkdir -p /home/user/new
        workdir: /srv
      - env: {WHO: me}
      - run: echo "$WHO" > /srv/who; rm /srv/a; echo noise > /tmp/x; echo secret > /root/.ash_history
environments:
  e: {base: base/box, workspace: workspace/w}
"""


def project(work, yaml=YAML):
    (work / "files").mkdir(exist_ok=True)
    (work / "files/a").write_text("one\n")
    (work / "dsec.yaml").write_text(yaml)


def test_steps_make_a_layer_of_what_they_changed(dsec, work):
    rootfs.import_base(dsec)
    project(work)
    dsec.ok("build")
    show = "cat /srv/b /srv/who; ls /srv /tmp; test -e /etc/group || echo gone; stat -c %a /home/user /tmp /root; ls -A /root"
    out = dsec.ok("run", "e", "--", "sh", "-c", show)
    assert out == "one\nme\n/srv:\nb\nwho\n\n/tmp:\ngone\n750\n1777\n700\n"
    files = dsec.ok("layer", "files", "workspace/w")
    for trace in ("resolv.conf", "hostname", "etc/hosts", "ash_history", "/dev", "/proc"):
        assert trace not in files, files
    assert dsec.json("env", "inspect", "e")["layers"]


def test_what_a_layer_stands_on_is_pulled_and_what_is_nowhere_is_told_with_its_place(dsec, work):
    rootfs.import_base(dsec)
    dsec.ok("publish", "base/box", "--to", f"file://{work}/registry")
    dsec.ok("layer", "rm", "base/box")
    dsec.ok("gc")
    project(work, YAML + "  f: {base: base/bxo}\n")
    result = dsec.run("build")
    assert result.code == 2 and "dsec.yaml:4:9: 'base/box:latest' is neither made by this file nor in the store" in result.err
    assert dsec.run("build", "--offline", "--registry", f"file://{work}/registry").code == 2
    result = dsec.run("build", "--registry", f"file://{work}/registry")
    assert result.code == 0, str(result)
    assert "dsec.yaml:13:13: 'base/bxo:latest' is neither made by this file nor in the store; did you mean base/box:latest?" in result.err
    assert "dsec.yaml:13:13" in dsec.fails(125, "run", "f", "--", "true")
    assert "dsec.yaml:13:13" in dsec.fails(2, "env", "lock")


def test_a_step_is_cached_until_what_it_stands_on_changes(dsec, work):
    rootfs.import_base(dsec)
    project(work)
    dsec.ok("build")
    assert "cached" in dsec.ok("build")
    (work / "dsec.yaml").write_text(YAML.replace("noise", "other"))
    again = dsec.run("build")
    assert again.code == 0, str(again)
    assert again.err.count("cached") >= 2, again.err


def test_a_failing_step_shows_its_last_output_and_leaves_nothing(dsec, work):
    rootfs.import_base(dsec)
    project(work, YAML.replace("rm /srv/a;", "echo about to fail; exit 7;"))
    err = dsec.fails(1, "build")
    assert "about to fail" in err and "exit code 7" in err and ".log" in err
    assert dsec.ok("ps", "-a", "-q") == ""
    assert "workspace/w" not in dsec.ok("layer", "ls")


def test_locked_builds_take_what_the_lock_pins(dsec, work):
    rootfs.import_base(dsec)
    project(work)
    dsec.ok("build")
    pinned = json.loads((work / "dsec.lock").read_text())["layers"]["workspace/w:latest"]["digest"]
    dsec.ok("build", "--locked")
    (work / "dsec.yaml").write_text(YAML.replace("noise", "other"))
    assert "is not the one that was locked" in dsec.fails(2, "build", "--locked")
    assert dsec.json("layer", "inspect", "workspace/w")[0]["digest"] == pinned


def test_a_killed_build_leaves_a_sandbox_that_gc_takes(dsec, work):
    rootfs.import_base(dsec)
    project(work, "version: 1\nlayers:\n  workspace/w: {on: base/box, steps: [{run: sleep 1000}]}\n")
    build = dsec.popen("build")
    deadline = time.monotonic() + 30
    while not dsec.ok("ps", "-q"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    build.kill()
    build.communicate()
    dsec.ok("gc")
    assert dsec.ok("ps", "-a", "-q") == ""


def test_files_that_changed_since_the_lock_are_drift(dsec, work):
    project(work, "version: 1\nlayers:\n  workspace/w: {steps: [{copy: {from: files, to: /srv}}]}\n")
    dsec.ok("build")
    dsec.ok("build", "--locked")
    (work / "files/a").write_text("two\n")
    assert "not those that were locked" in dsec.fails(2, "build", "--locked")
    assert "not those that were locked" in dsec.run("env", "check").out
