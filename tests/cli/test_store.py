"""Verbs that look at an empty store, and what can be done without root."""

import os
import shutil
import subprocess


def as_nobody(dsec, *args, **env) -> subprocess.CompletedProcess:
    """Runs it as an ordinary user, who gets the folder of the test and a copy of the program: the tree may be closed."""
    program = shutil.copy(dsec.argv()[0], dsec.cwd)
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    if nobody:
        os.chown(dsec.cwd, 65534, 65534)
    return subprocess.run([program, *args], env={**dsec.env, **env}, cwd=dsec.cwd, capture_output=True, text=True,
                          check=False, **nobody)


def test_looking_at_the_store_needs_no_root(dsec):
    for args in (["layer", "ls"], ["ps", "-a"], ["system", "df"], ["gc"], ["layer", "verify"]):
        done = as_nobody(dsec, *args)
        assert done.returncode == 0, (args, done.stderr)


def test_what_needs_root_says_so_and_names_both_stores(dsec):
    del dsec.env["DSEC_HOME"]
    done = as_nobody(dsec, "layer", "mount", "base/x", "/mnt")
    assert done.returncode == 1
    assert "'dsec layer mount' needs root" in done.stderr
    assert "/var/lib/dsec" in done.stderr and f"{dsec.cwd}/.local/share/dsec" in done.stderr


def test_an_empty_store_lists_nothing_and_verifies(dsec):
    assert dsec.ok("layer", "ls", "-q") == ""
    assert dsec.ok("ps", "-a", "-q") == ""
    assert dsec.ok("layer", "verify") == "0 layers, 0 blobs, 0 B: all right\n"
    assert dsec.json("gc", "--dry-run")["removed"] == []


def test_tables_have_headings_and_no_trailing_blanks(dsec):
    for args in (["layer", "ls"], ["ps"]):
        lines = dsec.ok(*args).splitlines()
        assert lines[0].isupper()
        assert all(line == line.rstrip() for line in lines)


def test_disk_use_has_sums_in_bytes_as_json(dsec):
    use = dsec.json("system", "df")
    assert use["layers"] == [] and use["layers_bytes"] == 0
    assert use["index_bytes"] > 0


def test_the_home_is_closed_to_others(dsec):
    dsec.ok("layer", "ls")
    assert dsec.home.stat().st_mode & 0o777 == 0o700


def test_a_home_of_a_newer_format_is_refused(dsec):
    dsec.ok("layer", "ls")
    (dsec.home / "format").write_text("99\n")
    assert "format '99'" in dsec.fails(1, "layer", "ls")
