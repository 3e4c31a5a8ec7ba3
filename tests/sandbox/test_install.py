"""An installation stands on its own: it finds its helpers beside itself, wherever it lies, and brings its manual."""

import re
import shutil
import subprocess

import pytest
from dsec_tool import BIN, ROOT
from rootfs import import_base

pytestmark = [pytest.mark.needs("build_tree"), pytest.mark.guest_slow("files are installed alike on any kernel")]


@pytest.fixture
def prefix(work):
    subprocess.run(["cmake", "--install", BIN.parent, "--prefix", work / "prefix"], check=True, capture_output=True)
    return work / "prefix"


def test_an_installed_dsec_imports_and_runs_with_the_helpers_it_brought(dsec, work, prefix, monkeypatch):
    for helper in ("dsec-init", "dsec-egress", "dsec-loader", "mkfs.erofs", "fsck.erofs"):
        assert (prefix / "libexec/dsec" / helper).is_file() and not (prefix / "libexec/dsec" / helper).is_symlink()
    moved = work / "moved"
    shutil.move(prefix, moved)
    monkeypatch.setattr("dsec_tool.BIN", moved / "bin")
    dsec.env["PATH"] = "/usr/bin:/bin"
    dsec.env.pop("DSEC_MKFS_EROFS", None)
    import_base(dsec)
    assert dsec.ok("run", "base/box", "--", "echo", "inside") == "inside\n"


def test_every_man_page_and_the_completions_of_three_shells_are_installed(dsec, prefix):
    sources = {page.name.removesuffix(".md") for page in (ROOT / "man").glob("*.md")}
    pages = {page.name: page for page in prefix.glob("share/man/man*/*")}
    assert set(pages) == sources
    for name, page in pages.items():
        title, section = name.rsplit(".", 1)
        assert page.parent.name == f"man{section}"
        assert re.search(rf'^\.TH "{re.escape(title.upper())}" "{section}"', page.read_text(), flags=re.M), name
    for shell, path in (("bash", "bash-completion/completions/dsec"), ("zsh", "zsh/site-functions/_dsec"),
                        ("fish", "fish/vendor_completions.d/dsec.fish")):
        assert (prefix / "share" / path).read_text() == dsec.ok("completion", shell)
