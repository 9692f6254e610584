"""A real S3 server in a process of its own, and a proxy in front of it that cuts connections."""

import os
import random
import selectors
import socket
import subprocess
import sys
import threading
import time
from typing import Any

_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.disable()
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until the test ends, or dies
server.stop()
"""
ACCESS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hidden-secret", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "bucket"


class S3Server:
    """moto's server on a free port, with one bucket."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", _SERVE], stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.env = {**ACCESS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def close(self) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class CuttingProxy:
    """Passes bytes on, and cuts every second connection after some bytes of the requests or of the answers."""

    def __init__(self, port: int, seed: int = 0):
        self._port, self._random = port, random.Random(seed)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.cut, self._connections, self._closed = self._socket.getsockname()[1], 0, 0, False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _budget(self) -> tuple[float, float]:
        """Bytes of requests and of answers before the cut."""
        with self._lock:
            self._connections += 1
            if self._connections % 2:
                return float("inf"), float("inf")
            at = self._random.randrange(1, 3000)
            return (at, float("inf")) if self._random.random() < 0.5 else (float("inf"), at)

    def _pass_on(self, client: socket.socket) -> None:
        up, down = self._budget()
        with (
            client,
            socket.create_connection(("127.0.0.1", self._port)) as server,
            selectors.DefaultSelector() as ready,
        ):
            left: dict[Any, float] = {client: up, server: down}
            other = {client: server, server: client}
            for side in other:
                ready.register(side, selectors.EVENT_READ)
            end = time.monotonic() + 60
            while time.monotonic() < end:
                for key, _ in ready.select(timeout=1):
                    side: Any = key.fileobj
                    try:
                        data = side.recv(1 << 16)
                        other[side].sendall(data[: int(min(left[side], len(data)))])
                    except OSError:
                        return
                    if len(data) > left[side]:
                        self.cut += 1
                        return
                    left[side] -= len(data)
                    if not data:
                        return


def clean_environment() -> dict[str, str]:
    """The environment without settings of AWS that this machine may have."""
    return {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
