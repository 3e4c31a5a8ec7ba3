"""What a sandbox has changed becomes layers and other sandboxes: the same files, from one moment."""

import json
import time

CHANGES = r"""
rm /srv/big
rm -r /whole
rm -r /renewed && mkdir /renewed && echo new > /renewed/new
echo more >> /srv/index.html
chmod 700 /srv
mkdir -p /deep/er/est && echo x > /deep/er/est/file && chown -R 1000:1001 /deep
ln /deep/er/est/file /deep/again
ln -s index.html /srv/soft
truncate -s 16M /sparse && echo middle | dd of=/sparse bs=1 seek=8000000 conv=notrunc 2>/dev/null
mknod /deep/fifo p
chmod 4755 /deep/er/est/file
rm /script && mkdir /script && echo now a folder > /script/inside
touch -d '2001-02-03 04:05:06' /deep/er/est
mkdir /gone && rmdir /gone && touch /passed && rm /passed
"""
# Of everything name, kind, mode and owners; of what is no directory links, time and content, too.
WALK = r"""
cd / && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./etc \) -prune -o -print | sort |
while IFS= read -r name; do
  if [ -L "$name" ]; then stat -c '%n %f %u %g %Y' "$name"; readlink "$name"
  elif [ -d "$name" ]; then stat -c '%n %f %u %g' "$name"
  else stat -c '%n %f %u %g %h %s %Y' "$name"; [ ! -f "$name" ] || md5sum < "$name"
  fi
done
"""


def tree(dsec, sandbox: str) -> list[str]:
    return dsec.ok("exec", sandbox, "--", "sh", "-c", WALK, timeout=240).splitlines()


def snapshot_of(dsec, name: str, layer: str) -> dict:
    return json.loads(dsec.ok("snapshot", "-o", "json", name, layer))


def test_a_snapshot_shows_the_same_tree_and_holds_what_changed(dsec):
    dsec.ok("create", "--name", "before", "base/box")
    dsec.ok("exec", "before", "--", "sh", "-ec", CHANGES)
    seen = tree(dsec, "before")
    made = snapshot_of(dsec, "before", "nasty:1")
    assert tree(dsec, "before") == seen, "the snapshot changed the sandbox"
    (told,) = json.loads(dsec.ok("inspect", "before"))
    assert made["layers"] == [*told["spec"]["layers"], made["digest"]]
    names = {line.split(" ", 1)[-1] for line in dsec.ok("layer", "files", "snapshot/nasty:1").splitlines()}
    assert not any("busybox" in name or "passed" in name or "gone" in name for name in names), names
    dsec.ok("create", "--name", "after", "snapshot/nasty:1")
    assert tree(dsec, "after") == seen
    # Times of directories are kept as well; that of the topmost is whoever's wrote there last.
    assert dsec.ok("exec", "after", "--", "stat", "-c", "%Y", "/deep/er/est") == \
        dsec.ok("exec", "before", "--", "stat", "-c", "%Y", "/deep/er/est")
    dsec.ok("rm", "-f", "before", "after")


def test_a_commit_is_a_workspace_of_what_changed(dsec):
    dsec.ok("create", "--name", "work", "base/box")
    dsec.ok("exec", "work", "--", "sh", "-c", "mkdir /ws; echo mine > /ws/file; rm /srv/big")
    dsec.ok("commit", "work", "workspace/w:1")
    dsec.ok("rm", "-f", "work")
    assert dsec.ok("run", "base/box", "workspace/w:1", "--", "sh", "-c", "cat /ws/file; ls /srv") == "mine\nindex.html\n"


def test_changes_are_told_by_lines_and_as_a_patch(dsec):
    dsec.ok("create", "--name", "lines", "base/box")
    dsec.ok("exec", "lines", "--", "sh", "-c", "echo more >> /srv/index.html; rm -r /whole; rm -r /renewed; mkdir /renewed; "
                                               "mkdir /new; echo one > /new/file")
    stat = dsec.ok("diff", "--stat", "lines")
    assert "srv/index.html" in stat and "new/file" in stat and "whole/a" in stat, stat
    patch = dsec.ok("diff", "--patch", "lines")
    for line in ("+more", "+one", "-a", "-o"):
        assert line in patch.splitlines(), patch
    dsec.ok("rm", "-f", "lines")


def test_forks_have_the_files_and_an_identity_of_their_own(dsec):
    dsec.ok("create", "--name", "dev", "--label", "suite=demo", "-m", "256MiB", "base/box")
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo shared > /root/mine; mkdir -p /var/lib/systemd; echo s > /var/lib/systemd/random-seed")
    forks = dsec.ok("fork", "dev", "--count", "2", "--label", "try=1", timeout=300).split()
    infos = json.loads(dsec.ok("inspect", *forks))
    assert [info["spec"]["name"] for info in infos] == ["dev-1", "dev-2"]
    own = {dsec.ok("exec", fork, "--", "sh", "-c", "cat /etc/machine-id; hostname; cat /root/mine; ls -A /var/lib/systemd")
           for fork in forks}
    assert len(own) == 2, own
    assert {tuple(text.splitlines()[2:]) for text in own} == {("shared",)}
    for info in infos:
        assert info["state"] == "running" and info["spec"]["limits"]["memory"] == 256 << 20
        assert info["spec"]["labels"]["try"] == "1" and info["spec"]["labels"]["suite"] == "demo"
    dsec.ok("exec", forks[0], "--", "sh", "-c", "echo first > /root/mine")
    assert dsec.ok("exec", forks[1], "--", "cat", "/root/mine") == "shared\n"
    assert dsec.ok("exec", "dev", "--", "cat", "/root/mine") == "shared\n"
    dsec.ok("rm", "-f", "dev", *forks)


def test_a_snapshot_of_one_that_writes_is_of_one_moment_and_does_not_stop_it(dsec):
    dsec.ok("create", "--name", "writer", "base/box")
    # At every moment b is a or a - 1.
    writer = "mkdir /w; n=0; while :; do n=$((n+1)); echo $n > /w/a.new; mv /w/a.new /w/a; echo $n > /w/b.new; mv /w/b.new /w/b; done"
    dsec.ok("exec", "-d", "writer", "--", "sh", "-c", writer)
    while dsec.run("exec", "writer", "--", "test", "-e", "/w/b").code != 0:
        time.sleep(0.1)
    dsec.ok("snapshot", "writer", "moment:1")
    before = int(dsec.ok("exec", "writer", "--", "cat", "/w/a"))
    a, b = dsec.ok("run", "snapshot/moment:1", "--", "cat", "/w/a", "/w/b").split()
    assert int(a) - int(b) in (0, 1), (a, b)
    assert int(dsec.ok("exec", "writer", "--", "cat", "/w/a")) > before
    dsec.ok("rm", "-f", "writer")


def test_a_snapshot_leaves_one_that_is_paused_as_it_is(dsec):
    dsec.ok("create", "--name", "still", "base/box")
    dsec.ok("exec", "still", "--", "sh", "-c", "echo kept > /root/file")
    dsec.ok("pause", "still")
    dsec.ok("snapshot", "still", "still:1")
    (told,) = json.loads(dsec.ok("inspect", "still"))
    assert told["state"] == "paused"
    assert dsec.ok("run", "snapshot/still:1", "--", "cat", "/root/file") == "kept\n"
    dsec.ok("rm", "-f", "still")


def test_one_without_a_writable_layer_has_no_changes(dsec):
    dsec.ok("create", "--name", "fixed", "--read-only", "base/box")
    assert "no writable layer" in dsec.run("snapshot", "fixed", "none:1").err
