"""Makes storages of this version of threadkeep, for tests/test_upgrades.py of later versions. Run it before a change:

    PYTHONPATH=src:tests python tests/data/make_own_databases.py tests/data own8

It writes NAME.sqlite.gz, NAME.postgres.sql.gz, NAME.valkey.json.gz and NAME.jsonl.zst. All have the same contents; the
last one is a portable file.

    own4    schema version 4, threadkeep 0.1.0: no checksums in thread rows and memories
    own8    schema version 8, threadkeep 0.2.0
"""

import base64
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import postgres_servers
import sample_keep
import threadkeep
import valkey_servers


def main(folder: Path, name: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "own.db"
        with threadkeep.open(f"sqlite:///{file}") as keep:
            sample_keep.fill(keep)
            keep.export(folder / f"{name}.jsonl.zst")
        write(folder / f"{name}.sqlite.gz", file.read_bytes())
        write(folder / f"{name}.postgres.sql.gz", dump_postgres(f"sqlite:///{file}"))
        write(folder / f"{name}.valkey.json.gz", dump_valkey(f"sqlite:///{file}"))


def write(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def dump_postgres(source: str) -> bytes:
    server = postgres_servers.shared()
    server.execute("DROP SCHEMA IF EXISTS own CASCADE")
    threadkeep.convert(source, server.url(schema="own"))
    command = [postgres_servers.binaries() / "pg_dump", "--inserts", "--no-owner", "--schema=own", server.url()]
    return subprocess.run(command, check=True, capture_output=True).stdout


def dump_valkey(source: str) -> bytes:
    server = valkey_servers.start()
    try:
        threadkeep.convert(source, f"valkey://127.0.0.1:{server.port}/?prefix=own:")
        client = server.client
        keys = {
            base64.b64encode(key).decode(): base64.b64encode(client.dump(key)).decode() for key in client.scan_iter()
        }
        return json.dumps(keys).encode()
    finally:
        server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
