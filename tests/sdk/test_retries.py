"""What a client does when the edge, or the way to it, fails: nothing is done twice, and nothing is lost."""

import asyncio
import contextlib
import json
import time

import pytest
from libdsec import NO_RETRIES, DSecBusyError, DSecClient, DSecConnectionError, DSecContainerRunArgs, DSecError, DSecTimeoutError, DSecUsageError, Retries

BOX = DSecContainerRunArgs("base/box", lifetime=300)


class Cutting:
    """Stands between clients and an edge. `cut(request)` tells of each connection, by the first line of its first request,
    after how many bytes of answers it is cut; None: never; minus as many: of the request's body. A connection carries one
    request."""

    def __init__(self, edge: str, place, cut):
        self.edge, self.place, self.cut, self.requests = edge.removeprefix("unix:"), place, cut, []

    async def __aenter__(self) -> str:
        self.server = await asyncio.start_unix_server(self.serve, self.place)
        return f"unix:{self.place}"

    async def __aexit__(self, *exc) -> None:
        self.server.close()

    async def serve(self, reader, writer) -> None:
        inside_reader, inside_writer = await asyncio.open_unix_connection(self.edge)
        with contextlib.closing(writer), contextlib.closing(inside_writer), contextlib.suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head.decode().partition("\r\n")[0].removesuffix(" HTTP/1.1"))
            left = self.cut(self.requests[-1])
            inside_writer.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") if b"Connection:" not in head else head)
            if left is not None and left < 0:
                inside_writer.write(await reader.readexactly(-left))
                return
            sending = asyncio.ensure_future(self.pass_on(reader, inside_writer))
            try:
                while data := await inside_reader.read(1 << 16):
                    if left is not None and len(data) >= left:
                        writer.write(data[:left])
                        await writer.drain()
                        return
                    left = left if left is None else left - len(data)
                    writer.write(data)
                    await writer.drain()
            finally:
                sending.cancel()

    @staticmethod
    async def pass_on(reader, writer) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


def once(call: str, after: int):
    """Cuts the first answer to `call` after so many bytes."""
    left = [call]

    def cut(request: str) -> int | None:
        if left and left[0] in request:
            left.pop()
            return after
        return None

    return cut


@pytest.mark.parametrize("after", [0, 100])
async def test_a_sandbox_whose_making_was_not_heard_of_is_made_once(edge, work, after):
    proxy = Cutting(edge, work / "cut.sock", once("POST /v1/sandboxes", after))
    async with proxy as address, DSecClient(address) as client:
        box = await client.run_container(BOX)
        assert [one.id for one in await client.sandboxes()] == [box.id]
        assert proxy.requests.count("POST /v1/sandboxes") == 2
        # It is this client's, which ends it.


@pytest.mark.parametrize("tty", [False, True], ids=["listening", "upgraded"])
async def test_a_command_whose_answer_was_lost_runs_once(edge, work, tty):
    proxy = Cutting(edge, work / "cut.sock", once("/commands", 0))
    async with proxy as address, DSecClient(address) as client:
        box = await client.run_container(BOX)
        result = await (await box.start(["sh", "-c", "echo x >> /root/ran; echo done"], tty=tty)).wait()
        assert result.stdout.split() == ["done"]
        assert await box.read_file("/root/ran") == b"x\n"
        assert sum("/commands" in request for request in proxy.requests) == 2


async def test_of_a_command_with_input_it_is_told_that_its_answer_was_lost(edge, work):
    """Repeated it would find its input at the end, and end well without it."""
    async with Cutting(edge, work / "cut.sock", once("/commands", 0)) as address, DSecClient(address) as client:
        box = await client.run_container(BOX)
        with pytest.raises(DSecConnectionError) as caught:
            await box.run(["cat"], input="needed", op_id="give")
        assert not caught.value.safe_to_retry and "sandbox.operation('give')" in caught.value.hints[-1]
        assert (await box.operation("give")).kind == "exec"


async def test_output_goes_on_from_the_byte_at_which_it_was_cut(edge, work):
    seen = []

    def cut(request: str) -> int | None:
        if "/commands" in request and len(seen) < 4:
            seen.append(request)
            return 20_000
        return None

    async with Cutting(edge, work / "cut.sock", cut) as address, DSecClient(address) as client:
        box = await client.run_container(BOX)
        result = await box.run_shell("seq 1 20000; seq 1 9999 >&2")
        assert result.stdout == "".join(f"{n}\n" for n in range(1, 20001)) and result.stderr == "".join(f"{n}\n" for n in range(1, 10000))
        assert len([request for request in seen if "/output?" in request]) == 3


async def test_a_command_with_input_that_is_cut_off_is_told_and_goes_on(edge, work):
    async with Cutting(edge, work / "cut.sock", once("/commands", 400)) as address, DSecClient(address) as client:
        box = await client.run_container(BOX)
        command = await box.start(["sh", "-c", "read x; seq 1 1000; sleep 0.5; touch /root/whole"], stdin=True)
        await command.write("\n")
        with pytest.raises(DSecConnectionError) as caught:
            await command.wait()
        assert caught.value.hints[-1] == f"sandbox.attach({command.exec_id!r}): the command goes on"
        result = await (await box.attach(command.exec_id)).wait()
        assert result.ok and result.stdout.endswith("1000\n")


async def test_copies_that_are_cut_are_made_again(edge, work):
    left = {"PUT": [0, None, -200_000], "GET": [100_000]}

    def cut(request: str) -> int | None:
        places = left.get(request.split()[0], []) if "/files" in request else []
        return places.pop(0) if places else None

    async with Cutting(edge, work / "cut.sock", cut) as address, DSecClient(address) as client:
        box = await client.run_container(BOX)
        data = b"0123456789abcdef" * 30_000
        await box.write_file("/root/data", data)
        (work / "here").write_bytes(data)
        await box.upload(work / "here", "/root/more")
        assert await box.read_file("/root/data") == data == await box.read_file("/root/more")
        assert [one.outcome for one in (await box.trajectory()).operations if one.kind == "write"] == ["ok", "failed", "ok"]
    assert left == {"PUT": [], "GET": []}


async def test_commands_outlive_their_edge_and_clients_wait_for_the_next(own):
    edge = own.edge()
    async with DSecClient(edge.url, retries=Retries(attempts=30)) as client:
        box = await client.run_container(BOX)
        running = asyncio.ensure_future(box.run_shell("echo begun; while [ ! -e /go ]; do sleep 0.05; done; echo done"))
        while not any(command.running for command in await box.commands()):
            await asyncio.sleep(0.02)
        edge.kill()
        asked = asyncio.ensure_future(box.run(["touch", "/go"]))
        await asyncio.sleep(0.3)
        await asyncio.get_running_loop().run_in_executor(None, edge.start)
        assert (await asked).ok
        assert (await running).stdout == "begun\ndone\n"


async def test_an_operation_is_done_once_however_often_it_is_asked_for(client):
    first = await client.run_container(BOX, op_id="sdk-test-create")
    assert (await client.run_container(BOX, op_id="sdk-test-create")).id == first.id
    say = ["sh", "-c", "cat /proc/sys/kernel/random/uuid; echo x >> /root/said"]
    assert (await first.run(say, op_id="say")).stdout == (await first.run(say, op_id="say")).stdout
    assert await first.read_file("/root/said") == b"x\n"
    with pytest.raises(DSecUsageError, match="was another request"):
        await first.run(["true"], op_id="say")


async def test_an_edge_that_is_not_there_is_told(work):
    for address, why in ((f"unix:{work}/nobody.sock", "No such file"), ("http://127.0.0.1:9", "refused|Connect call failed")):
        began = time.monotonic()
        with pytest.raises(DSecConnectionError, match=why) as caught:
            await DSecClient(address, retries=Retries(attempts=3, first_delay=0.05)).open()
        assert time.monotonic() - began > 0.1 and caught.value.safe_to_retry and address in str(caught.value)
    for address in ("https://127.0.0.1", "unix:relative", "127.0.0.1:7701", "http://"):
        with pytest.raises(DSecUsageError, match="as the address of an edge"):
            await DSecClient(address).open()


async def test_an_edge_wants_its_token(own, work):
    token = work / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    edge = own.edge("--token-file", str(token), listen="127.0.0.1:0")
    async with DSecClient(edge.url, token_file=token) as client:
        assert (await (await client.run_container(BOX)).run_shell("echo there", input="")).stdout == "there\n"
    async with DSecClient(edge.url, token="0123456789abcdef0124") as client:
        with pytest.raises(DSecUsageError, match="wants a token") as caught:
            await client.sandboxes()
        assert caught.value.status == 401
    token.chmod(0o644)
    with pytest.raises(DSecUsageError, match="others than its owner"):
        DSecClient(edge.url, token_file=token)


async def answering(work, *answers: bytes):
    """A server that gives these answers, one to each connection, and then none."""
    queue = list(answers)

    async def serve(reader, writer):
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            if queue:
                writer.write(queue.pop(0))
                await writer.drain()
            else:
                await asyncio.sleep(1000)

    server = await asyncio.start_unix_server(serve, work / "edge.sock")
    return server, f"unix:{work}/edge.sock"


def answer(status: str, document) -> bytes:
    body = json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


WELL = answer("200 OK", {"status": "ok", "name": "lab", "version": "1"})
BUSY = answer("503 Service Unavailable", {"error": {"kind": "failed", "chain": ["it is busy"], "try": ["later"], "exit_code": 1}})


async def test_a_busy_edge_is_asked_again_and_then_given_up(work):
    server, address = await answering(work, WELL, BUSY, BUSY, answer("200 OK", {"sandboxes": []}), BUSY)
    async with server, DSecClient(address, retries=Retries(attempts=3, first_delay=0.01)) as client:
        assert await client.sandboxes() == []
        client._edge.retries = NO_RETRIES
        with pytest.raises(DSecBusyError) as caught:
            await client.sandboxes()
        assert caught.value.safe_to_retry and caught.value.status == 503 and caught.value.hints == ("later",)


async def test_an_edge_that_says_nothing_is_given_up_in_time(work):
    server, address = await answering(work, WELL)
    async with server, DSecClient(address, call_timeout=0.2) as client:
        with pytest.raises(DSecTimeoutError, match="has not answered within 0.2 s") as caught:
            await client.sandboxes()
        assert caught.value.safe_to_retry
        with pytest.raises(asyncio.TimeoutError):
            await client.metrics()


@pytest.mark.parametrize("nonsense", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{{{{{",
                                      answer("500 Internal Server Error", ["what"]), answer("409 Conflict", {"error": "x"})])
async def test_what_is_no_answer_of_an_edge_is_an_error(work, nonsense):
    server, address = await answering(work, WELL, nonsense)
    async with server, DSecClient(address, retries=NO_RETRIES) as client:
        with pytest.raises(DSecError) as caught:
            await client.sandboxes()
        assert caught.value.attempt == "cannot list sandboxes" and caught.value.causes
