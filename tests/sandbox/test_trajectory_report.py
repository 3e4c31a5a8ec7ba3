"""dsec traj report in a browser: the page works, and nothing that a trajectory holds does."""

import re
import shutil
import struct
import subprocess

import pytest
import rootfs
from html_page import Page

pytestmark = pytest.mark.guest_slow("a page says nothing of a kernel")

HOSTILE = "</pre></style><script>document.documentElement.dataset.taken=1</script><img src=x onerror='document.title=1'>"
SECRET = "hunter2hunter2"


@pytest.fixture
def reports(dsec, work):
    """The page of one rollout against another, and its text."""
    rootfs.import_base(dsec)
    (work / HOSTILE.replace("/", "_")).write_text("x")
    for name, answer in (("first", "yes"), ("second", "no")):
        dsec.ok("create", "--name", name, "-e", f"ANSWER={answer}", "-e", f"API_TOKEN={SECRET}", "base/box")
        dsec.ok("exec", name, "--", "sh", "-c", f'printf "%s\\n" "$0"; echo $API_TOKEN; printf "\\033[31mred\\033[0m\\n"', HOSTILE)
        dsec.run("exec", name, "--", "sh", "-c", "echo broken >&2; exit 3")
        dsec.ok("exec", name, "--", "sh", "-c", "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done")
        dsec.ok("cp", HOSTILE.replace("/", "_"), f"{name}:/")
        dsec.ok("exec", "--op-id", "answer", name, "--", "sh", "-c", "echo $ANSWER; echo done")
    dsec.ok("exec", "second", "--", "true")
    dsec.ok("traj", "report", "first", "--out", "report.html", "--against", "second")
    return work / "report.html"


def chromium(work, *args: str) -> str:
    """Its answer. In the lane that runs this a missing one is a failure: scripts/packages.sh installs it."""
    program = shutil.which("chromium")
    assert program, "chromium is missing: apt-get install chromium"
    done = subprocess.run([program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={work}/browser", *args],
                          cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_content(page: Page) -> None:
    assert page.texts["total"] == "5" and page.texts["failed"] == "1" and page.texts["odd"] == "0"
    assert len(page.of("article", "op")) == 5 and len(page.of("rect")) == 5
    assert [a["id"] for a in page.of("article", "failed")] == ["op-2"]
    assert HOSTILE in page.texts["op-1"] and SECRET not in str(page.texts) and "X" * len(SECRET) in page.texts["op-1"]
    assert "\nred\n" in page.texts["op-1"]
    assert "line 499" in page.texts["op-3"] and "460 more lines" in page.texts["op-3"]
    assert "1 files brought in" in page.texts["op-4"] and "<script>" in page.texts["op-4"]
    assert "op-id answer" in page.texts["op-5"]
    # What differs is what one command says, and one more command.
    assert (page.texts["same"], page.texts["different"], page.texts["left"], page.texts["right"]) == ("4", "1", "0", "1")
    assert [a["id"] for a in page.of("article", "changed")] == ["op-5"] and len(page.of("pre", "diff")) == 1
    # Everything in it is from itself.
    assert len(page.of("script")) == 1 and not page.of("img") and not page.of("link")
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes), (tag, attributes)
        assert attributes.get("href", "#").startswith("#"), attributes
    policy = next(a["content"] for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert all(a.get("tabindex") == "0" for a in page.of("article"))


def test_a_report_can_be_read_without_a_browser(dsec, reports):
    text = reports.read_text()
    assert text.startswith("<!doctype html>") and SECRET not in text
    check_content(Page(text))
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    dsec.ok("traj", "export", "first", "--out", "first.jsonl")
    dsec.ok("traj", "report", "./first.jsonl", "--out", "of-export.html")
    assert Page((dsec.cwd / "of-export.html").read_text()).texts["total"] == "5"
    assert "--out" in dsec.fails(2, "traj", "report", "first")


@pytest.mark.guest_slow("a browser")
def test_a_report_works_in_a_browser_and_runs_nothing_else(work, reports):
    dom = chromium(work, "--dump-dom", f"file://{reports}")
    page = Page(dom)
    check_content(page)
    html = page.of("html")[0]
    # Its own script ran, and no other.
    assert html["data-operations"] == "5" and "scripted" in html["class"]
    assert "data-taken" not in html and re.search(r"<title>dsec \w{22}</title>", dom)
    assert page.texts["shown"] == "5 of 5"
    assert [a["data-filter"] for a in page.of("button") if a.get("aria-pressed") == "true"] == ["all"]
    chromium(work, "--screenshot=page.png", "--window-size=900,1200", f"file://{reports}")
    picture = (work / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and struct.unpack(">II", picture[16:24]) == (900, 1200)
    assert len(picture) > 10_000  # an empty page has next to nothing


def test_a_report_shows_which_files_each_operation_writes(dsec, work):
    rootfs.import_base(dsec)
    (work / "given").write_text("x" * 3000)
    dsec.ok("create", "--name", "r", "base/box")
    for command in ("mkdir -p /srv/new; echo one > /srv/new/a; echo two > /etc/passwd", "true",
                    "echo more >> /srv/new/a; rm /etc/group; touch '/srv/<b>'", "rm -r /srv/new; echo back > /etc/group",
                    "touch /srv/gone; rm /srv/gone"):
        dsec.ok("exec", "r", "--", "sh", "-c", command)
    dsec.ok("pause", "r")
    dsec.ok("cp", "given", "r:/srv/given")
    dsec.ok("rm", "-f", "r")
    dsec.ok("traj", "report", "r", "--out", "report.html", "--replay")
    page = Page((work / "report.html").read_text())

    def written(number: int) -> list[tuple[str, str]]:
        rows = re.findall(r"(/[^\s]*?)(added|changed|removed)", page.texts[f"op-{number}"].partition("in a replay")[2])
        return [(path, what) for path, what in rows]

    assert written(1) == [("/etc/passwd", "changed"), ("/srv", "added"), ("/srv/new", "added"), ("/srv/new/a", "added")]
    assert "in a replay" not in page.texts["op-2"] and "in a replay" not in page.texts["op-5"]
    assert written(3) == [("/etc/group", "removed"), ("/srv/<b>", "added"), ("/srv/new/a", "changed")]
    assert written(4) == [("/etc/group", "added"), ("/srv/new", "removed"), ("/srv/new/a", "removed")]
    copied = next(name for name, text in page.texts.items() if name.startswith("op-") and "given" in text)
    assert written(int(copied[3:])) == [("/srv/given", "added")]
    assert "2.9 KiB" in page.texts[copied]
    assert dsec.ok("ps", "-aq") == ""
