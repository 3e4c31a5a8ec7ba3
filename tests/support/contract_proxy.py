"""Stands between clients and an edge and compares what passes with core/remote/openapi.yaml."""

import contextlib
import json
import re
import socket
import threading
import urllib.parse
from pathlib import Path

import jsonschema
import yaml

CONTRACT = Path(__file__).resolve().parents[2] / "core/remote/openapi.yaml"
PIECE = 1 << 16


class Contract:
    def __init__(self):
        self.document = yaml.safe_load(CONTRACT.read_text())
        self.operations = []
        for path, item in self.document["paths"].items():
            pattern = re.compile(re.sub(r"\\{\w+\\}", "([^/]+)", re.escape(path)) + "$")
            for method, operation in item.items():
                if method != "parameters":
                    parameters = [self.resolve(one) for one in item.get("parameters", []) + operation.get("parameters", [])]
                    self.operations.append((method.upper(), pattern, operation, parameters))

    def resolve(self, value: dict) -> dict:
        while "$ref" in value:
            target = self.document
            for part in value["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            value = target
        return value

    def check(self, what: str, schema: dict, value) -> list[str]:
        # References are to the document's root.
        whole = {**schema, "components": self.document["components"]}
        return [f"{what}: {error.message[:300]} at {list(error.absolute_path)}"
                for error in jsonschema.Draft202012Validator(whole).iter_errors(value)]

    def find(self, method: str, target: str):
        for known, pattern, operation, parameters in self.operations:
            if known == method and pattern.match(target.partition("?")[0]):
                return operation, parameters
        return None, []

    def request_faults(self, method: str, target: str, headers: dict, body: bytes) -> list[str]:
        operation, parameters = self.find(method, target)
        if not operation:
            return [f"{method} {target} is not in the contract"]
        name, faults = operation["operationId"], []
        query = dict(urllib.parse.parse_qsl(target.partition("?")[2], keep_blank_values=True))
        known = {one["name"]: one for one in parameters if one["in"] == "query"}
        faults += [f"{name}: there is no parameter {each}" for each in query if each not in known]
        faults += [f"{name}: {each} is missing" for each, one in known.items() if one.get("required") and each not in query]
        for each, value in query.items():
            schema = known.get(each, {}).get("schema", {})
            faults += self.check(f"{name}?{each}", schema, int(value) if schema.get("type") == "integer" else value)
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            faults += self.check(f"{name}: request", content["application/json"]["schema"], json.loads(body))
        elif body:
            faults.append(f"{name}: a body that is not in the contract")
        return faults

    def answer_faults(self, method: str, target: str, status: str, headers: dict, body: bytes) -> list[str]:
        operation, _ = self.find(method, target)
        if not operation:
            return []
        name = operation["operationId"]
        known = operation["responses"].get(status) or operation["responses"].get("default")
        if not known:
            return [f"{name}: {status} is not in the contract"]
        content = self.resolve(known).get("content", {})
        kind = headers.get("content-type", "").partition(";")[0]
        if status == "101":
            return []
        if kind not in content:
            return [f"{name}: {status} with {kind!r} is not in the contract"]
        if kind != "application/json":
            return []
        return self.check(f"{name}: {status}", content[kind]["schema"], json.loads(body))


def read_head(stream) -> tuple[bytes, str, dict]:
    head = b""
    for line in stream:
        head += line
        if line == b"\r\n":
            break
    lines = head.decode("latin-1").split("\r\n")
    return head, lines[0], {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}


class ContractProxy:
    """At a socket of its own. Each connection carries one request, as those of `dsec` do."""

    def __init__(self, edge: str, place: Path):
        self.edge, self.contract, self.faults = edge, Contract(), []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(place))
        self.listener.listen(512)
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.edge)
            self.relay(client, server)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError):
                self.faults.append(f"what passed cannot be read: {error!r}")
        finally:
            client.close()
            server.close()

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        asking, answering = client.makefile("rb"), server.makefile("rb")
        head, line, headers = read_head(asking)
        if not line:
            return
        method, target, _ = line.split(" ")
        size = int(headers.get("content-length", 0))
        body = asking.read(size)
        self.faults += self.contract.request_faults(method, target, headers, body)
        server.sendall(head + body)
        sender = None
        if headers.get("transfer-encoding") == "chunked":
            # The answer may come before the body's end.
            sender = threading.Thread(target=self.pass_on, args=(asking, server, False), daemon=True)
            sender.start()
        head, line, headers = read_head(answering)
        status = line.split(" ")[1]
        if status == "101":
            client.sendall(head)
            self.faults += self.contract.answer_faults(method, target, status, headers, b"")
            back = threading.Thread(target=self.pass_on, args=(answering, client, True), daemon=True)
            back.start()
            self.pass_on(asking, server, True)
            back.join()
            return
        body = answering.read(int(headers.get("content-length", 0)))
        self.faults += self.contract.answer_faults(method, target, status, headers, body)
        client.sendall(head + body)

    @staticmethod
    def pass_on(source, sink: socket.socket, ends: bool) -> None:
        with contextlib.suppress(OSError, ValueError):
            while piece := source.read1(PIECE):
                sink.sendall(piece)
        if ends:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
