"""An SSH server on the loopback for tests that serves git, to whoever has one key. And the agent that holds it."""

import os
import socket
import subprocess
import threading
from pathlib import Path

import paramiko


class _Door(paramiko.ServerInterface):
    """Lets one key in, to run git-upload-pack and nothing else."""

    def __init__(self, key: str, asked: list[str]):
        self.key, self.asked = key, asked

    def get_allowed_auths(self, username):
        return "publickey"

    def check_auth_publickey(self, username, key):
        self.asked.append(f"{username} {key.get_name()}")
        return paramiko.AUTH_SUCCESSFUL if key.get_base64() == self.key else paramiko.AUTH_FAILED

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel, command):
        program, _, path = command.decode().partition(" ")
        if program != "git-upload-pack":
            return False
        threading.Thread(target=serve, args=(channel, path.strip("'")), daemon=True).start()
        return True


def serve(channel, path: str) -> None:
    process = subprocess.Popen(["git", "-c", "safe.directory=*", "upload-pack", path], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)

    def take():
        while data := channel.recv(65536):
            process.stdin.write(data)
            process.stdin.flush()
        process.stdin.close()

    threading.Thread(target=take, daemon=True).start()
    while data := os.read(process.stdout.fileno(), 65536):
        channel.sendall(data)
    channel.send_exit_status(process.wait())
    channel.close()


class SshServer:
    """`key` is a public key as ssh-keygen writes it."""

    def __init__(self, key: str):
        self.asked: list[str] = []  # users and kinds of the keys that were offered
        self.host_key = paramiko.ECDSAKey.generate()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.key = key.split()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def known_host(self) -> str:
        """Its line in known_hosts."""
        return f"[127.0.0.1]:{self.port} {self.host_key.get_name()} {self.host_key.get_base64()}\n"

    def _accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(peer)
            transport.add_server_key(self.host_key)
            try:
                transport.start_server(threading.Event(), _Door(self.key, self.asked))
            except paramiko.SSHException:
                peer.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


class SshAgent:
    """ssh-agent with one new key, the file of which is gone."""

    def __init__(self, folder: Path):
        self.socket = folder / "agent.sock"
        self.process = subprocess.Popen(["ssh-agent", "-D", "-a", self.socket], stdout=subprocess.DEVNULL)
        private = folder / "id"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", private], check=True)
        self.public = private.with_suffix(".pub").read_text()
        while not self.socket.exists():
            assert self.process.poll() is None
        subprocess.run(["ssh-add", "-q", private], check=True, env={**os.environ, "SSH_AUTH_SOCK": str(self.socket)})
        private.unlink()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
