"""A Debian system is built, begun, logged into, and a program on its screen is clicked at. All of it is emulated where
there is no KVM, which takes minutes: one machine serves all tests."""

import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from on_backend import OnBackend
from png import Picture

# A window with one button; the program tells which one was pressed by its exit code.
PACKAGES = "xserver-xorg-core,xserver-xorg-input-libinput,x11-utils,x11-xserver-utils,xfonts-base,procps"
LONG = 1800
USER_DATA = "#cloud-config\nhostname: given\n"

pytestmark = pytest.mark.alone("a whole system is emulated, with both processors, and each worker would build its own")


@pytest.fixture(scope="module")
def desktop(kernel_home):
    with tempfile.TemporaryDirectory(prefix="dsec-vm-") as folder:
        work = Path(folder)
        tool = OnBackend(work / "home", work, "fullvm")
        tool.give_kernel(kernel_home)
        tool.ok("vm", "build", "base/desktop", "--from", f"debootstrap:bookworm?include={PACKAGES}", "--size", "3GiB",
                timeout=LONG)
        (work / "user-data").write_text(USER_DATA)
        tool.ok("create", "--name", "pc", "--memory", "1GiB", "--user-data", "user-data", "base/desktop", timeout=LONG)
        yield tool
        tool.clean_up()


def picture(tool, name: str = "shot.png") -> Picture:
    tool.ok("vm", "screenshot", "pc", "--out", name)
    return Picture((tool.cwd / name).read_bytes())


def await_true(check, patience: float = 240):
    end = time.monotonic() + patience
    while not (found := check()):
        assert time.monotonic() < end
        time.sleep(1)
    return found


def test_commands_run_in_its_system_as_it_is(desktop):
    result = desktop.run("exec", "pc", "--", "sh", "-c", "echo out; echo err >&2; cat /proc/1/comm; exit 7")
    assert (result.code, result.out, result.err) == (7, "out\nsystemd\n", "err\n")
    # Nothing is between them and the system: they see its processes and may do what root may.
    assert "dsec-init" in desktop.ok("exec", "pc", "--", "ps", "-e", "-o", "args")
    assert desktop.ok("exec", "pc", "--", "systemctl", "is-active", "dsec-agent").strip() == "active"
    desktop.ok("exec", "pc", "--", "mount", "-t", "tmpfs", "none", "/mnt")
    assert "VERSION_CODENAME=bookworm" in desktop.ok("exec", "pc", "--", "cat", "/etc/os-release")
    assert desktop.ok("exec", "pc", "--", "hostname").strip() == json.loads(desktop.ok("inspect", "pc"))[0]["id"]
    assert desktop.ok("exec", "-i", "pc", "--", "tr", "a-z", "A-Z", input="given") == "GIVEN"
    assert desktop.run("exec", "--timeout", "2s", "pc", "--", "sleep", "60").code == 124


def test_its_seed_is_a_disc_that_its_system_reads(desktop):
    told = desktop.ok("exec", "pc", "--", "sh", "-c",
                      "mkdir /seed && mount -o ro LABEL=cidata /seed && cat /seed/user-data /seed/meta-data")
    sandbox = json.loads(desktop.ok("inspect", "pc"))[0]["id"]
    assert told == f"{USER_DATA}instance-id: {sandbox}\nlocal-hostname: {sandbox}\n"


def test_files_go_in_and_out(desktop, work):
    (work / "in").write_bytes(bytes(range(256)) * 20000)
    desktop.ok("cp", work / "in", "pc:/root/in")
    assert desktop.ok("exec", "pc", "--", "stat", "-c", "%s %U", "/root/in") == "5120000 root\n"
    desktop.ok("cp", "pc:/root/in", work / "out")
    assert (work / "out").read_bytes() == (work / "in").read_bytes()


def test_sessions_keep_what_they_are_told(desktop):
    desktop.ok("session", "open", "pc", "--name", "one")
    desktop.ok("session", "run", "pc", "one", "--", "cd /usr/lib")
    assert desktop.ok("session", "run", "pc", "one", "--", "pwd") == "/usr/lib\n"
    desktop.ok("session", "close", "pc", "one")


def test_its_console_has_a_login(desktop):
    await_true(lambda: "login:" in desktop.ok("logs", "pc"))
    console = desktop.popen("vm", "console", "pc", stdin=subprocess.PIPE)
    console.stdin.write(b"root\n")
    console.stdin.flush()
    await_true(lambda: re.search(r"root@\S+:~# ", desktop.ok("logs", "pc")))
    console.stdin.write(b"tty; echo $((6 * 7)) > /root/by-console\n")
    console.stdin.flush()
    await_true(lambda: "/dev/ttyS0" in desktop.ok("logs", "pc"))
    console.kill()
    console.communicate()
    assert desktop.ok("exec", "pc", "--", "cat", "/root/by-console") == "42\n"


def test_somebody_logs_in_at_its_screen(desktop):
    before = picture(desktop)
    assert before.width >= 640
    await_true(lambda: desktop.run("exec", "pc", "--", "pgrep", "-t", "tty1", "agetty").code == 0)
    desktop.ok("vm", "type", "pc", "root\n")
    await_true(lambda: desktop.run("exec", "pc", "--", "pgrep", "-t", "tty1", "bash").code == 0)
    desktop.ok("vm", "type", "pc", "echo \"I am $USER at $(tty)\" > /root/by-screen\n")
    await_true(lambda: desktop.run("exec", "pc", "--", "test", "-s", "/root/by-screen").code == 0)
    assert desktop.ok("exec", "pc", "--", "cat", "/root/by-screen") == "I am root at /dev/tty1\n"
    assert picture(desktop).rows != before.rows


RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
# All red, with one green button; whatever is not pressed stays red.
PROGRAM = """
export DISPLAY=:0
Xorg :0 vt7 -noreset -nolisten tcp -ac > /root/xorg.log 2>&1 &
until xset q > /dev/null 2>&1; do sleep 0.5; done
xsetroot -solid black
xmessage -center -bg red -fg black -xrm 'box*okay.background: green' -buttons okay:42 -name box 'Press the green button'
echo $? > /root/pressed
xsetroot -solid blue
"""


def test_a_program_on_its_screen_is_clicked_at(desktop):
    desktop.ok("cp", "-", "pc:/root", input=subprocess.run(
        ["tar", "-c", "-C", _file(desktop.cwd, "show.sh", PROGRAM), "show.sh"], check=True, capture_output=True).stdout)
    desktop.ok("exec", "-d", "pc", "--", "sh", "/root/show.sh")

    def button():
        shot = picture(desktop)
        return shot.colours().get(RED, 0) > 500 and shot.box_of(GREEN)

    left, top, right, bottom = await_true(button, 600)
    desktop.ok("vm", "click", "pc", f"{(left + right) // 2},{(top + bottom) // 2}")
    await_true(lambda: desktop.run("exec", "pc", "--", "test", "-s", "/root/pressed").code == 0)
    assert desktop.ok("exec", "pc", "--", "cat", "/root/pressed") == "42\n"
    after = await_true(lambda: (shot := picture(desktop)).colours().get(BLUE, 0) > shot.width * shot.height // 2 and shot)
    assert RED not in after.colours() and GREEN not in after.colours()


def test_all_of_it_is_in_the_trajectory(desktop):
    shown = [json.loads(line) for line in desktop.ok("traj", "show", "pc", "-o", "json").splitlines()]
    kinds = [entry.get("kind") for entry in shown]
    assert {"exec", "write", "read", "session", "screen-input", "screenshot"} <= set(kinds)
    click = [entry for entry in shown if entry.get("kind") == "screen-input" and entry["request"]["action"] == "click"]
    assert len(click) == 1 and click[0]["outcome"] == "ok"


def test_its_button_turns_it_off(desktop):
    desktop.ok("stop", "--time", "120", "pc", timeout=200)
    (told,) = json.loads(desktop.ok("inspect", "pc"))
    assert (told["state"], told["reason"]) == ("stopped", "its system turned it off")


def _file(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder
