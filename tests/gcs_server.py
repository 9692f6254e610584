"""A stand-in for Google Cloud Storage in a thread: those requests of its JSON interface that gcsfs sends."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class GcsServer:
    """Objects of one bucket by name; refuses to replace one with ifGenerationMatch=0, as Google does."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def about(self, name: str) -> dict[str, Any]:
        date = "2026-01-01T00:00:00.000Z"
        size = str(len(self.objects[name]))
        return {"name": name, "bucket": "bucket", "size": size, "updated": date, "timeCreated": date, "generation": "1"}


def _handler(server: GcsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *_: object) -> None:
            pass

        def _answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _json(self, body: Any, status: int = 200) -> None:
            self._answer(status, json.dumps(body).encode())

        def _gone(self) -> None:
            self._json({"error": {"code": 404, "message": "Not Found"}}, 404)

        def _asked(self) -> tuple[str, dict[str, str]]:
            parts = urlsplit(self.path)
            server.requests.append(f"{self.command} {self.path}")
            return parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()}

        def do_POST(self) -> None:
            _, query = self._asked()
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if query.get("uploadType") == "multipart":
                mark = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])
                assert mark is not None
                _, first, rest = body.split(f"--{mark[1]}".encode(), 2)
                second = rest[: rest.rindex(f"--{mark[1]}".encode())]
                name = json.loads(first.partition(b"\n\n")[2] or first.partition(b"\r\n\r\n")[2])["name"]
                _, gap, data = second.partition(b"\n\n")
                body = (data if gap else second.partition(b"\r\n\r\n")[2])[:-1]
            else:
                name = query["name"]
            with server.lock:
                if query.get("ifGenerationMatch") == "0" and name in server.objects:
                    self._json({"error": {"code": 412, "message": "conditionNotMet"}}, 412)
                    return
                server.objects[name] = body
            self._json(server.about(name))

        def do_GET(self) -> None:
            path, query = self._asked()
            found = re.fullmatch(r"(?:/download)?/storage/v1/b/bucket/o(?:/(.*))?", path)
            if found is None:
                self._gone()
            elif found[1] is None:
                self._json(self._listing(query))
            elif (name := unquote(found[1])) not in server.objects:
                self._gone()
            elif query.get("alt") == "media":
                data = server.objects[name]
                wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if wanted:
                    data = data[int(wanted[1]) : int(wanted[2]) + 1 if wanted[2] else None]
                self._answer(206 if wanted else 200, data)
            else:
                self._json(server.about(name))

        def do_DELETE(self) -> None:
            path, _ = self._asked()
            name = unquote(path.rpartition("/o/")[2])
            if server.objects.pop(name, None) is None:
                self._gone()
            else:
                self._answer(204, b"")

        def _listing(self, query: dict[str, str]) -> dict[str, Any]:
            prefix, items, folders = query.get("prefix", ""), [], set()
            for name in sorted(server.objects):
                rest = name.removeprefix(prefix)
                if not name.startswith(prefix):
                    continue
                if query.get("delimiter") and "/" in rest:
                    folders.add(prefix + rest.partition("/")[0] + "/")
                else:
                    items.append(server.about(name))
            return {"items": items, "prefixes": sorted(folders)}

    return Handler
