"""The Hugging Face Hub's HTTP API on loopback, as far as huggingface_hub and datasets use it to read and to upload."""

import base64
import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

RESOLVE = re.compile(r"/(?P<kind>datasets/)?(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<rev>[^/]+)/(?P<path>.+)")
API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+(?:/[^/]+)?)"
    r"(?:/(?P<verb>revision|tree|paths-info|preupload|commit|branch)/(?P<rev>[^/]+)(?:/(?P<path>.+))?)?"
)
LFS = re.compile(r"/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch")
CHECK = re.compile(r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)/auth-check/write")
Repo = dict[str, bytes]  # path -> content
WRITE_TOKEN, READ_TOKEN = "hf_may_write", "hf_may_read"
LARGE = (".safetensors", ".parquet", ".png")  # endings of files that go to the large file storage


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
        self.history: dict[str, list[Repo]] = {}  # as `repos` -> the files after each commit
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}  # the large file storage, by sha256
        self.drop_uploads_after: int | None = None  # uploads of large files until the connection breaks
        self.sent = 0  # bytes of the contents of files
        self.lock = threading.Lock()
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

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        self.server_hub.requests.append(f"{self.command} {url.path}")
        if url.path.startswith("/large/"):
            return self._store_large(url.path.removeprefix("/large/"), body)
        if url.path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        if url.path == "/api/repos/create":
            return self._create(json.loads(body))
        if match := CHECK.fullmatch(url.path):
            return self._send(200, b"{}", {}) if self._may_write() else self._error(403, "")
        if match := LFS.fullmatch(url.path):
            return self._large_batch(json.loads(body))
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
        older = [each for name, past in self.server_hub.history.items() if _is_of(name, key) for each in past]
        known = {commit_of(each): each for each in (*older, *branches.values())}
        files = named[rev] if rev in named else known.get(rev)
        if part.get("verb") == "branch" and self._may_write():
            self.server_hub.repos.setdefault(f"{key}@{rev}", dict(branches[""]))
            return self._send(200, b"", {})
        if files is None:
            return self._error(404, "RevisionNotFound")
        if match.re is RESOLVE:
            return self._file(files, part["path"])
        if part["verb"] in ("preupload", "commit") and not self._may_write():
            return self._error(403, "")
        if part["verb"] == "preupload":
            return self._json({"files": [_upload_mode(files, each["path"]) for each in json.loads(body)["files"]]})
        if part["verb"] == "commit":
            return self._commit(key if rev == "main" else f"{key}@{rev}", files, body)
        if part["verb"] == "tree":
            if part["path"] and not any(path.startswith(f"{part['path'].rstrip('/')}/") for path in files):
                return self._error(404, "EntryNotFound")
            recursive = parse_qs(url.query).get("recursive", [""])[0].lower() == "true"
            return self._json(_entries(files, part["path"], recursive))
        if part["verb"] == "paths-info":
            return self._json(_paths_info(files, _wanted(body)))
        return self._json({**_info(kind, part["repo"], files), "private": key in self.server_hub.private})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _may_write(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {WRITE_TOKEN}"

    def _validate(self, card: str) -> None:
        """As the Hub: an error for a header that is no YAML mapping, or for a base model that is no name."""
        try:
            header = yaml.safe_load(card.split("---\n")[1])
            names = [*(header.get("base_model") or []), *(header.get("datasets") or [])]
            good = isinstance(header, dict) and all(re.fullmatch(r"[\w.-]+/[\w.-]+", name) for name in names)
        except (yaml.YAMLError, IndexError, AttributeError, TypeError):
            good = False
        errors = [] if good else [{"message": "the header is not valid"}]
        self._send(400 if errors else 200, json.dumps({"errors": errors, "warnings": []}).encode(), {})

    def _create(self, asked: dict[str, str]) -> None:
        if not self._may_write():
            return self._error(401 if "Authorization" not in self.headers else 403, "")
        hub, kind = self.server_hub, f"{asked.get('type') or 'model'}s"
        key = f"{kind}/{asked['organization']}/{asked['name']}"
        if asked["organization"] not in ("me", "us"):
            return self._error(403, "")
        if key in hub.repos:
            return self._error(409, "")
        hub.repos[key] = {".gitattributes": b""}
        if asked.get("visibility") == "private":
            hub.private.add(key)
        return self._json({"url": f"{hub.url}/{key.removeprefix('models/')}"})

    def _large_batch(self, asked: dict[str, list[dict[str, object]]]) -> None:
        if not self._may_write():
            return self._error(403, "")
        objects: list[dict[str, object]] = []
        for one in asked["objects"]:
            known = one["oid"] in self.server_hub.large
            action = {"upload": {"href": f"{self.server_hub.url}/large/{one['oid']}"}}
            objects.append(one if known else {**one, "actions": action})
        return self._json({"transfer": "basic", "objects": objects})

    def _store_large(self, oid: str, body: bytes) -> None:
        hub = self.server_hub
        with hub.lock:
            if hub.drop_uploads_after is not None:
                if not hub.drop_uploads_after:
                    self.close_connection = True
                    return None  # the connection ends without an answer
                hub.drop_uploads_after -= 1
        if hashlib.sha256(body).hexdigest() != oid:
            return self._error(400, "")
        hub.large[oid] = body
        return self._send(200, b"", {})

    def _commit(self, key: str, before: Repo, body: bytes) -> None:
        """All operations at once, or none: a stale parent, or a large file that was not uploaded, is refused."""
        hub, files = self.server_hub, dict(before)
        with hub.lock:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header" and value.get("parentCommit") not in (None, commit_of(before)):
                    return self._error(412, "")
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                if line["key"] == "lfsFile":
                    if value["oid"] not in hub.large:
                        return self._error(400, "")
                    files[value["path"]] = hub.large[value["oid"]]
                if line["key"] == "deletedFile":
                    del files[value["path"]]
            hub.repos[key] = files
            hub.history.setdefault(key, [dict(before)]).append(files)
        page = f"{hub.url}/{key.partition('@')[0].removeprefix('models/')}"
        return self._json({"commitUrl": f"{page}/commit/{commit_of(files)}", "commitOid": commit_of(files)})

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
        if path.endswith(".safetensors") and self.command == "GET":
            self.server_hub.sent += self._length(len(content))
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not span:
            return self._send(200, content, headers)
        first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
        if first > last:
            return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return self._send(206, content[first : last + 1], headers)

    def _length(self, whole: int) -> int:
        """Bytes that the answer has."""
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        return min(int(span[2] or whole), whole - 1) - int(span[1]) + 1 if span else whole

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


def _upload_mode(files: Repo, path: str) -> dict[str, object]:
    mode, oid = ("lfs", hashlib.sha256) if path.endswith(LARGE) else ("regular", None)
    content = files.get(path)
    known = None if content is None else oid(content).hexdigest() if oid else _oid(content)
    return {"path": path, "uploadMode": mode, "shouldIgnore": False, **({"oid": known} if known else {})}


def _entry(files: Repo, path: str) -> dict[str, object]:
    if path in files:
        content = files[path]
        large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        more = {"lfs": large} if path.endswith(LARGE) else {}
        return {"type": "file", "path": path, "size": len(content), "oid": _oid(content), **more}
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
