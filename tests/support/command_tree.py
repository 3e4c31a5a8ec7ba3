"""Reads what `dsec --help` says: the commands and, of each, the options."""

import re


def children(help_text: str) -> list[str]:
    """Names below "Commands:"; empty for a verb."""
    if "\nCommands:\n" not in help_text:
        return []
    block = help_text.split("\nCommands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in block.splitlines() if re.match(r"  \S", line)]


def commands(dsec, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Every command and group with its help, by path."""
    text = dsec.ok(*path, "--help")
    found = {path: text}
    for name in children(text):
        found |= commands(dsec, (*path, name))
    return found


def options(help_text: str) -> set[str]:
    """All spellings: {"-m", "--memory"}."""
    block = help_text.split("\nOptions:\n")[1].split("\n\n")[0]
    # A line of an option begins with its short name or, six columns in, with its long one; then come at least two blanks.
    heads = [line.strip().split("  ")[0] for line in block.splitlines() if re.match(r"  -|      --", line)]
    return {word for head in heads for word in re.findall(r"(?<![\w-])--?[a-zA-Z0-9][\w-]*", head)}
