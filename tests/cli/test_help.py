"""What people read first."""

import command_tree


def test_the_help_of_every_command_is_as_reviewed(dsec, golden):
    for path, text in command_tree.commands(dsec).items():
        golden("help/" + ("-".join(path) or "dsec") + ".txt", text)


def test_no_line_of_help_is_wider_than_a_page(dsec):
    for path, text in command_tree.commands(dsec).items():
        # An example may be longer: a broken line could not be copied.
        lines = text.split("\nExamples:\n")[0].splitlines()
        assert max(len(line) for line in lines) <= 100, path


def test_a_summary_is_an_imperative_without_a_full_stop(dsec):
    for path, text in command_tree.commands(dsec).items():
        first = text.splitlines()[0]
        assert not first.endswith("."), path
        assert first[0].isupper(), path


def test_help_and_version_touch_no_disk(dsec):
    command_tree.commands(dsec)
    dsec.ok("version")
    dsec.ok("completion", "bash")
    assert not dsec.home.exists()


def test_a_group_without_a_verb_is_misuse_and_shows_its_verbs(dsec):
    result = dsec.run("layer")
    assert result.code == 2
    assert result.out == ""
    assert "inspect" in result.err


def test_version_has_both_spellings_and_json(dsec):
    assert dsec.ok("version") == dsec.ok("--version")
    assert dsec.ok("version") == f"dsec {dsec.json('version')['version']}\n"
