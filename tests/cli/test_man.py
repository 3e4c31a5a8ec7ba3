"""Man pages and help name the same commands and options."""

import re
from pathlib import Path

import command_tree

MAN = Path(__file__).resolve().parents[2] / "man"
PAGES = sorted(MAN.glob("*.1.md"))
# Every verb has these; dsec(1) tells of them once.
COMMON = {"-o", "--output", "-h", "--help"}
# Flags of `run` and `create` that stand in sections of their own, since both have them.
SHARED = {"run": ["MAKING A SANDBOX", "RUNNING A COMMAND"], "registry trace": ["MAKING A SANDBOX"], "create": ["MAKING A SANDBOX"], "exec": ["RUNNING A COMMAND"],
          **{f"fn {verb}": ["NAMING A FUNCTION"] for verb in ("run", "judge", "bench", "ls", "pool")}}


def terms(text: str) -> set[str]:
    """Options that are explained: those of lines before a line that begins with a colon."""
    lines = text.splitlines()
    heads = [line for line, following in zip(lines, lines[1:]) if following.startswith(": ")]
    return {word for line in heads for word in re.findall(r"`(--?[a-zA-Z0-9][\w-]*)`", line)}


def sections() -> dict[str, str]:
    """Text by command ("layer ls") and by heading in capitals."""
    found = {}
    for page in PAGES:
        for part in re.split(r"^#+ (?=\S)", page.read_text(), flags=re.M)[1:]:
            heading, _, body = part.partition("\n")
            words = heading.split()
            if words[0] == "dsec":
                name = []
                for word in words[1:]:
                    if not re.fullmatch(r"[a-z]+", word):
                        break
                    name.append(word)
                found[" ".join(name)] = body
            elif heading == "OPTIONS":
                # A page of one command needs no section of its name.
                found[page.name.removeprefix("dsec-").removesuffix(".1.md")] = body
            elif heading in {name for names in SHARED.values() for name in names}:
                found[heading] = body
    return found


def test_every_command_has_a_section_and_every_section_a_command(dsec):
    verbs = {" ".join(path) for path, text in command_tree.commands(dsec).items() if not command_tree.children(text)}
    documented = {name for name in sections() if name == name.lower()}
    assert documented == verbs


def test_the_options_of_a_command_are_those_of_its_section(dsec):
    documented = sections()
    for path, text in command_tree.commands(dsec).items():
        name = " ".join(path)
        if command_tree.children(text):
            continue
        shown = {option for option in command_tree.options(text) if not (option in COMMON)}
        told = terms(documented[name])
        shared = set().union(*(terms(documented[section]) for section in SHARED.get(name, [])))
        assert shown - told - shared == set(), f"{name}: not in the man page"
        assert told - shown - COMMON == set(), f"{name}: only in the man page"
    of_all = {name: command_tree.options(text) for path, text in command_tree.commands(dsec).items()
              if not command_tree.children(text) for name in [" ".join(path)]}
    for section in {section for names in SHARED.values() for section in names}:
        users = [of_all[name] for name, names in SHARED.items() if section in names]
        for option in terms(documented[section]):
            assert any(option in options for options in users), f"{section}: {option} is no option of any command"


def test_every_page_named_by_another_is_there():
    # A page of several commands names them all below NAME, and is found under each.
    known = set()
    for page in MAN.glob("*.md"):
        number = page.name.split(".")[-2]
        known.add((page.name.removesuffix(f".{number}.md"), number))
        title = page.read_text().split("# NAME")[1].split("\n#")[0].split(" - ")[0]
        known |= {(name.strip(), number) for name in title.split(",")}
    for page in MAN.glob("*.md"):
        for name, number in re.findall(r"\*\*(dsec[\w.-]*)\*\*\((\d)\)", page.read_text()):
            assert (name, number) in known, f"{page.name} names {name}({number})"


def test_the_table_of_defaults_names_options_that_exist(dsec):
    table = (MAN / "dsec.1.md").read_text().split("# DEFAULTS")[1].split("\n# ")[0]
    known = set().union(*(command_tree.options(text) for text in command_tree.commands(dsec).values()
                          if not command_tree.children(text)))
    for option in re.findall(r"`(--[\w-]+)`", table):
        assert option in known, option
