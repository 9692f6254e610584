"""The Hugging Face Hub's HTTP API on loopback, as far as huggingface_hub and datasets use it to read."""

import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

RESOLVE = re.compile(r"/(?P<kind>datasets/)?(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<rev>[^/]+)/(?P<path>.+)")
API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+(?:/[^/]+)?)"
    r"(?:/(?P<verb>revision|tree|paths-info)/(?P<rev>[^/]+)(?:/(?P<path>.+))?)?"
)
Repo = dict[str, bytes]  # path -> content


def commit_of(files: Repo) -> str:
    digest = hashlib.sha1()
    for path, content in sorted(files.items()):
        digest.update(path.encode() + b"\0" + content)
    return digest.hexdigest()


class HubServer:
    """Serves repositories until closed, to processes whose environment is `env`.

    huggingface_hub reads HF_ENDPOINT when it is imported: run what uses this Hub in a process of its own.

    Args:
        repos: "models/owner/name" or "datasets/owner/name" -> its files; "models/owner/name@step1": of a branch.
        home: the folder that becomes HF_HOME, where the caches are.
    """

    def __init__(self, repos: dict[str, Repo], home: Path):
        self.repos = repos
        self.refuse: dict[str, tuple[int, str]] = {}  # as `repos` -> (status, error code) to answer instead
        self.requests: list[str] = []  # "GET /path", in order
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.env = hub_env(self.url, home)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def hub_env(url: str, home: Path) -> dict[str, str]:
    """The environment of a process that imports this checkout, whose Hub is `url` and whose caches are in `home`."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
    return plain | {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",  # the counter of datasets would leave HF_ENDPOINT
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }


class _Handler(BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        self.server_hub.requests.append(f"{self.command} {url.path}")
        match = RESOLVE.fullmatch(url.path) or API.fullmatch(url.path)
        if not match:
            return self._error(404, "")
        part = {name: value and unquote(value) for name, value in match.groupdict().items()}
        kind = "datasets" if (part["kind"] or "").startswith("datasets") else "models"
        if "/" not in part["repo"]:
            return self._bare_name(kind, part["repo"], url.path, url.query)
        key = f"{kind}/{part['repo']}"
        if key in self.server_hub.refuse:
            return self._error(*self.server_hub.refuse[key])
        branches = {name.partition("@")[2]: files for name, files in self.server_hub.repos.items() if _is_of(name, key)}
        if not branches:
            return self._error(404, "RepoNotFound")
        rev = part.get("rev") or "main"
        named = {name or "main": files for name, files in branches.items()}
        files = named.get(rev) or {commit_of(each): each for each in branches.values()}.get(rev)
        if files is None:
            return self._error(404, "RevisionNotFound")
        if match.re is RESOLVE:
            return self._file(files, part["path"])
        if part["verb"] == "tree":
            recursive = parse_qs(url.query).get("recursive", [""])[0].lower() == "true"
            return self._json(_entries(files, part["path"], recursive))
        if part["verb"] == "paths-info":
            return self._json(_paths_info(files, _wanted(body)))
        return self._json(_info(kind, part["repo"], files))

    def _bare_name(self, kind: str, name: str, path: str, query: str) -> None:
        for known in self.server_hub.repos:
            if known.startswith(f"{kind}/") and known.endswith(f"/{name}"):
                target = path.replace(f"/{name}", "/" + known.removeprefix(f"{kind}/"), 1)
                return self._send(307, b"", {"Location": target + (f"?{query}" if query else "")})
        return self._error(404, "RepoNotFound")

    def _file(self, files: Repo, path: str) -> None:
        commit = {"X-Repo-Commit": commit_of(files)}
        if path not in files:
            return self._error(404, "EntryNotFound", commit)
        content = files[path]
        headers = commit | {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not span:
            return self._send(200, content, headers)
        first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
        if first > last:
            return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return self._send(206, content[first : last + 1], headers)

    def _json(self, answer: object) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, b"{}", {**(headers or {}), **({"X-Error-Code": code} if code else {})})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_of(name: str, key: str) -> bool:
    return name.partition("@")[0] == key


def _wanted(body: bytes) -> list[str]:
    """The paths of a paths-info request, which come as JSON or as a form."""
    text = body.decode()
    paths = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
    return [paths] if isinstance(paths, str) else paths


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(files: Repo, path: str) -> dict[str, object]:
    if path in files:
        return {"type": "file", "path": path, "size": len(files[path]), "oid": _oid(files[path])}
    return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}


def _paths_info(files: Repo, paths: list[str]) -> list[dict[str, object]]:
    folders = {str(parent) for path in files for parent in Path(path).parents}
    return [_entry(files, path) for path in paths if path in files or path in folders]


def _entries(files: Repo, folder: str | None, recursive: bool) -> list[dict[str, object]]:
    start = f"{folder.rstrip('/')}/" if folder else ""
    below = [path.removeprefix(start) for path in sorted(files) if path.startswith(start)]
    names = {str(Path(*Path(path).parts[:n])) for path in below for n in range(1, len(Path(path).parts) + 1)}
    return [_entry(files, start + name) for name in sorted(names) if recursive or "/" not in name]


def _info(kind: str, repo: str, files: Repo) -> dict[str, object]:
    siblings = [{"rfilename": path, "size": len(content), "blobId": _oid(content)} for path, content in files.items()]
    info = {"_id": hashlib.sha1(repo.encode()).hexdigest()[:24], "id": repo, "sha": commit_of(files), "private": False}
    more = {"author": repo.split("/")[0], "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": []}
    dates = {"lastModified": "2024-02-19T10:57:45.000Z", "createdAt": "2022-03-02T23:29:04.000Z"}
    return {**info, **more, **dates, **({"modelId": repo} if kind == "models" else {}), "siblings": siblings}
