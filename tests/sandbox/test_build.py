"""dsec build with steps that run: what a step leaves becomes the layer, cached, scrubbed and without traces of dsec."""

import json
import os
import re
import time
from pathlib import Path

import pytest
import rootfs
from terminal import Terminal

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


def test_a_cached_step_does_not_run_again(dsec, work):
    rootfs.import_base(dsec)
    random = "      - run: cat /proc/sys/kernel/random/uuid > /srv/once\n"
    tail = "environments:"
    project(work, YAML.replace(tail, random + "      - run: echo a > /srv/later\n" + tail))

    def once() -> tuple[str, str]:
        dsec.ok("build")
        return tuple(dsec.ok("run", "e", "--", "cat", "/srv/once", "/srv/later").split())

    first = once()
    project(work, YAML.replace(tail, random + "      - run: echo b > /srv/later\n" + tail))
    second = once()
    assert (first[1], second[1]) == ("a", "b") and first[0] == second[0]
    dsec.ok("build", "--no-cache")
    assert dsec.ok("run", "e", "--", "cat", "/srv/once").strip() != first[0]


def test_a_step_runs_as_the_user_and_with_the_settings_that_it_and_those_before_give(dsec, work):
    rootfs.import_base(dsec)
    project(work, """\
version: 1
layers:
  workspace/w:
    on: base/box
    scrub: [/srv/out/*.tmp]
    keep: [/root/.ash_history]
    steps:
      - run: mkdir -m 777 /srv /srv/out; echo kept > /root/.ash_history
      - user: user
      - env: {WHO: all}
      - run: id -un > /srv/out/step; echo "$WHO $OWN" > /srv/out/env; touch /srv/out/x.tmp
      - run: [sh, -c, 'printf %s "$0:$1:$WHO:$(id -un):$OWN" > /srv/out/list', a b, $HOME]
        user: root
        env: {WHO: me, OWN: here}
      - run: wget -q -T 2 -O - http://127.0.0.1:1/ || ls /sys/class/net > /srv/out/net
        network: host
environments:
  e:
    base: base/box
    workspace: workspace/w
    network: host
    lifetime: {max: 1h, idle: 10m}
    labels: {suite: demo}
""")
    dsec.ok("build")
    show = "cd /srv/out; cat step env list; ls; stat -c %U step list; cat net"
    out = dsec.ok("run", "e", "--", "sh", "-c", show + "; id -un; echo $WHO")
    nets = "".join(f"{name}\n" for name in sorted(os.listdir("/sys/class/net")))
    assert out == ("user\nall \na b:$HOME:me:root:hereenv\nlist\nnet\nstep\nuser\nroot\n" + nets + "user\nall\n")
    assert dsec.ok("run", "-u", "root", "e", "--", "cat", "/root/.ash_history") == "kept\n"
    assert dsec.json("env", "inspect", "e")["layers"][1]["manifest"]["config"]["user"] == "user"
    # An environment's network, lifetimes and labels are its sandboxes'.
    dsec.ok("create", "--name", "box", "e")
    spec = dsec.json("inspect", "box")[0]["spec"]
    assert (spec["lifetime_ms"], spec["idle_ms"], spec["network"]) == (3600_000, 600_000, "host")
    assert dsec.ok("ps", "-q", "--label", "suite=demo") and spec["labels"]["suite"] == "demo"
    assert dsec.ok("exec", "box", "--", "readlink", "/proc/self/ns/net").strip() == os.readlink("/proc/self/ns/net")


def test_a_failing_step_shows_its_last_output_and_leaves_nothing(dsec, work):
    rootfs.import_base(dsec)
    project(work, YAML.replace("rm /srv/a;", "seq 5000 | sed 's/^/line /'; echo about to fail; exit 7;"))
    err = dsec.fails(1, "build")
    told = err.split("error: ")[1]
    assert "line 5000" in told and "about to fail" in told and "exit code 7" in told and "line 1\n" not in told
    log = Path(re.search(r"read the whole output in (\S+\.log)", err).group(1)).read_text()
    assert log == "".join(f"line {i}\n" for i in range(1, 5001)) + "about to fail\n"
    assert dsec.ok("ps", "-a", "-q") == ""
    assert "workspace/w" not in dsec.ok("layer", "ls")


def test_a_shell_opens_where_a_step_failed_and_the_sandbox_goes_with_it(dsec, work):
    rootfs.import_base(dsec)
    project(work, YAML.replace("rm /srv/a;", "echo half > /srv/half; exit 7;"))
    assert "needs a terminal" in dsec.fails(2, "build", "--shell-on-failure")
    terminal = Terminal(dsec, "build", "--shell-on-failure")
    terminal.expect(b"this shell is in its sandbox")
    terminal.type(b"echo see-$(cat /srv/half)-$WHO; touch /srv/mended; exit\n")
    terminal.expect(b"see-half-me")
    terminal.expect(b"the command ended with exit code 7")
    assert terminal.close() == 1
    assert dsec.ok("ps", "-aq") == "" and "workspace/w" not in dsec.ok("layer", "ls")


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
