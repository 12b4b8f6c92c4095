"""The PostgreSQL servers of the tests: they start, store, crash, recover, replicate, and do not outlive the run."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import postgres_servers
from processes import finish, start

_USER = """
import sys, postgres_servers
server = postgres_servers.shared()
print(server.pid, server.port, postgres_servers.run_folder(), flush=True)
sys.stdin.readline()
"""

_ELSEWHERE = """
import sys, pathlib, postgres_servers
port, folder = postgres_servers.free_port(), pathlib.Path(sys.argv[1])
server = postgres_servers.Server(folder, postgres_servers.binaries(), port, postgres_servers.QUICK)
server.create()
server.start()
assert server.execute("show unix_socket_directories") == [("",)]
print(server.pid, postgres_servers.run_folder(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def server() -> Iterator[postgres_servers.Server]:
    with postgres_servers.fresh_server() as made:
        made.execute("create table kept (n int)")
        made.execute("insert into kept values (1)")
        yield made


def _kept(server: postgres_servers.Server) -> list[int]:
    return [n for (n,) in server.execute("select n from kept order by n")]


def _comes(wanted: list[int], server: postgres_servers.Server) -> bool:
    return postgres_servers.wait_until(lambda: _kept(server) == wanted, 10)


def _another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started from now on do not belong to this run."""
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    monkeypatch.setenv("THREADKEEP_RUN", uuid.uuid4().hex)


def _is_removed(folder: Path) -> None:
    assert postgres_servers.wait_until(lambda: not list(folder.parent.glob(f"{folder.name}*")), 10)


def test_all_processes_share_one_server():
    ours = postgres_servers.shared()
    users = [start(_USER) for _ in range(2)]
    lines = [user.stdout.readline().split() for user in users if user.stdout]
    assert lines == [[str(ours.pid), str(ours.port), str(postgres_servers.run_folder())]] * 2
    assert [finish(user) for user in users] == ["", ""]
    assert ours.execute("select 1") == [(1,)]


def test_a_shared_server_ends_with_the_last_process_even_if_that_is_killed(monkeypatch: pytest.MonkeyPatch):
    _another_run(monkeypatch)
    users = [start(_USER) for _ in range(2)]
    lines = [user.stdout.readline().split() for user in users if user.stdout]
    assert lines[0] == lines[1]
    pid, folder = int(lines[0][0]), Path(lines[0][2])
    finish(users[0])
    time.sleep(0.3)
    assert postgres_servers._stat(pid)[0]
    users[1].send_signal(signal.SIGKILL)
    users[1].communicate()
    _is_removed(folder)
    assert not postgres_servers._stat(pid)[0]


def test_fresh_schemas_are_distinct_and_do_not_exist():
    ours = postgres_servers.shared()
    first, second = postgres_servers.fresh_schema(ours), postgres_servers.fresh_schema(ours)
    assert first != second
    assert ours.execute(f"select to_regnamespace('{first.partition('schema=')[2]}')") == [(None,)]


def test_free_ports_are_never_given_twice():
    ports = [postgres_servers.free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert max(ports) < 22768


def test_a_restart_keeps_the_data_and_takes_new_settings(server: postgres_servers.Server):
    server.settings["work_mem"] = "7MB"
    server.restart()
    assert _kept(server) == [1]
    assert server.execute("show work_mem") == [("7MB",)]
    server.stop()
    assert not server.running


def test_a_killed_server_recovers_what_it_committed(server: postgres_servers.Server):
    for n in range(2, 5):
        with psycopg.connect(server.url()) as open_one:
            server.execute(f"insert into kept values ({n})")
            open_one.execute("insert into kept values (-1)")
            server.kill()
            assert not server.running
            with pytest.raises(psycopg.OperationalError):
                open_one.commit()
        server.start()
        assert _kept(server) == list(range(1, n + 1))


def test_a_paused_server_answers_when_it_is_resumed(server: postgres_servers.Server):
    with psycopg.connect(server.url(), autocommit=True) as open_one:
        server.pause()
        open_one.pgconn.send_query(b"select 1")
        time.sleep(0.3)
        open_one.pgconn.consume_input()
        assert open_one.pgconn.is_busy()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url(connect_timeout="2"))
        server.resume()
        answer = open_one.pgconn.get_result()
        assert answer is not None
        assert answer.get_value(0, 0) == b"1"
        assert open_one.pgconn.get_result() is None


def test_a_synchronous_standby_follows_and_is_promoted(server: postgres_servers.Server):
    twin = server.standby(postgres_servers.fresh_folder(), postgres_servers.free_port(), "twin")
    twin.start()
    server.settings["synchronous_standby_names"] = "twin"
    server.restart()
    server.execute("insert into kept values (2)")
    assert server.execute("select application_name, sync_state from pg_stat_replication") == [("twin", "sync")]
    assert _comes([1, 2], twin)
    server.kill()
    twin.promote()
    twin.execute("insert into kept values (3)")
    assert _kept(twin) == [1, 2, 3]
    twin.remove()


def test_a_server_that_cannot_start_says_why(server: postgres_servers.Server):
    server.stop()
    server.settings["shared_buffers"] = "plenty"
    with pytest.raises(postgres_servers.ServerError, match='invalid value for parameter "shared_buffers": "plenty"'):
        server.start()
    with pytest.raises(postgres_servers.ServerError, match="is not running"):
        server.kill()


def test_a_server_in_another_folder_ends_with_the_run_too(monkeypatch: pytest.MonkeyPatch):
    folder = postgres_servers.fresh_folder() / ("deep" * 30)  # too long for a socket
    _another_run(monkeypatch)
    child = start(_ELSEWHERE, folder)
    assert child.stdout is not None
    pid, ran = child.stdout.readline().split()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    _is_removed(Path(ran))
    assert not postgres_servers._stat(int(pid))[0]
    assert (folder / "log").exists()


def test_the_oldest_server_starts():
    bin = postgres_servers.oldest()
    if bin is None:
        pytest.skip("PostgreSQL 15 is not installed: apt-get install postgresql-15")
    assert postgres_servers.shared(bin).execute("show server_version_num")[0][0].startswith("15")


def test_a_bouncer_lends_one_connection_to_several_clients_between_transactions():
    if postgres_servers.pgbouncer() is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    with postgres_servers.fresh_bouncer(postgres_servers.shared(), {"default_pool_size": "1"}) as bouncer:
        with psycopg.connect(bouncer.url()) as one, psycopg.connect(bouncer.url()) as two:
            backends = set()
            for client in (one, two, one):
                backends.add(client.execute("select pg_backend_pid()").fetchone())
                client.commit()
    assert len(backends) == 1
