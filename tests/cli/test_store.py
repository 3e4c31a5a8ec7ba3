"""Verbs that look at an empty store."""


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
