"""Completion scripts, driven by the shells that read them."""

import shutil
import subprocess

import command_tree
import pytest


def bash_completes(dsec, *words: str) -> set[str]:
    program = (
        dsec.ok("completion", "bash")
        + '\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dsec; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", program, "bash", *words], capture_output=True, text=True, check=True, env=dsec.env)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_verbs_groups_options_and_fixed_values(dsec):
    assert {"run", "layer"} <= bash_completes(dsec, "dsec", "")
    assert bash_completes(dsec, "dsec", "inspe") == {"inspect"}
    assert {"ls", "tag"} <= bash_completes(dsec, "dsec", "layer", "")
    assert {"--memory", "--cpus"} <= bash_completes(dsec, "dsec", "run", "--")
    assert bash_completes(dsec, "dsec", "run", "--network", "") == {"none", "host", "policy"}


def test_bash_knows_every_option_of_every_verb(dsec):
    for path, text in command_tree.commands(dsec).items():
        if "\nOptions:\n" in text:
            missing = {option for option in command_tree.options(text) if option.startswith("--")} - bash_completes(
                dsec, "dsec", *path, "--")
            assert not missing, path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_accepted_by_its_shell(dsec, shell, work):
    script = work / "script"
    script.write_text(dsec.ok("completion", shell))
    if not shutil.which(shell):
        # Without the shell its script can at least not be empty or name no verb.
        assert "inspect" in script.read_text()
        return
    subprocess.run([shell, "-n", script], check=True)
