"""A store in S3 compared with the same store on disk and with plain s3fs: python benchmarks/object_store.py

The activations are those of benchmarks/store.py (13 places of a GPT-2 small, random float16). A server is started here
(moto's, which keeps objects in memory), unless `--bucket` names a bucket elsewhere. Contestants run in turn;
the tables have medians, and the medians of the ratios to the first line, round by round. Plain s3fs puts and gets the
bytes of the same shards, three at a time as the store does, without hashes, records or checks.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from store import PLACES, Data, race, table, write_store

from probekit.activations.store.reader import Store
from probekit.files.remote.filesystems import filesystem
from probekit.files.remote.path import RemotePath, as_path

_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.disable()
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def bucket(name: str | None) -> Iterator[str]:
    """A bucket: the one that is named, or a new one in a server of our own."""
    if name is not None:
        yield name
        return
    serve = [sys.executable, "-c", _SERVE]
    with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        address = f"http://127.0.0.1:{port}"
        os.environ |= {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        filesystem("s3").call_s3("create_bucket", Bucket="bench")
        yield "bench"
        server.communicate()


def in_turn(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Three at a time, as many as a store has on its way."""
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(work, items))


def empty(place: RemotePath) -> None:
    for one in list(place.rglob("*")):
        one.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucket", help="a bucket of your own; default: a server is started here")
    parser.add_argument("--rows", type=int, default=14_000)
    parser.add_argument("--shard-rows", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    args = parser.parse_args()
    data, found = Data(args.rows), {}
    print(f"{args.rows:,} x {len(PLACES)} x {data.x.shape[-1]} float16, {data.x.nbytes / 1e9:.3f} GB")
    with tempfile.TemporaryDirectory() as folder, bucket(args.bucket) as name:
        local, remote = Path(folder), as_path(f"s3://{name}/probekit-benchmark")
        assert isinstance(remote, RemotePath)
        write_store(local / "kept", data, args.shard_rows)
        shards = [one.read_bytes() for one in sorted((local / "kept" / "store" / "shards").iterdir())]
        files = filesystem("s3")
        names = [f"{remote.key}/plain/{i}" for i in range(len(shards))]

        def anew() -> None:
            shutil.rmtree(local / "made", ignore_errors=True)
            (local / "made").mkdir()
            empty(remote / "made")
            os.sync()

        writers = {
            "plain s3fs": lambda: in_turn(lambda i: files.pipe_file(names[i], shards[i]), list(range(len(shards)))),
            "store in S3": lambda: write_store(remote / "made", data, args.shard_rows),
            "store on disk": lambda: write_store(local / "made", data, args.shard_rows),
        }
        found["write"] = table("Write", race(writers, args.repeats, anew), data.x.nbytes)
        write_store(remote / "made", data, args.shard_rows)
        there, here = Store(remote / "made" / "store"), Store(local / "kept" / "store")
        assert torch.equal(there[PLACES[5]], here[PLACES[5]])
        readers = {
            "plain s3fs, whole shards": lambda: in_turn(files.cat_file, names),
            "store in S3, every place": lambda: [there[place] for place in PLACES],
            "store on disk, every place": lambda: [here[place] for place in PLACES],
        }
        found["read"] = table("Read everything, hashed", race(readers, args.repeats, lambda: None), data.x.nbytes)
        one = {
            "plain s3fs, whole shards": lambda: in_turn(files.cat_file, names),
            "store in S3": lambda: there[PLACES[5]],
            "store on disk": lambda: here[PLACES[5]],
        }
        found["one place"] = table("Read one place of 13", race(one, args.repeats, lambda: None), data.x[0].nbytes)
        empty(remote)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
