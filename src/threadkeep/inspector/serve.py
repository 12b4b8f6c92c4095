"""Serve the inspector of one storage on this machine, until the process is interrupted."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable

import uvicorn

from threadkeep.inspector.application import inspector
from threadkeep.inspector.guard import LOOPBACK
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.link_token import TOKEN, LinkToken

ANY_PORT = 0


def serve(shown: Inspected, *, host: str, port: int, open_browser: bool, announce: Callable[[str], None]) -> None:
    """Serve on a port of this machine, by default any free one. `announce` gets the link with the token.

    OSError if the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        port = listening.getsockname()[1]
        token = LinkToken(port)
        name = f"[{host}]" if ":" in host else host
        link = f"http://{name}:{port}/?{TOKEN}={token.token}"
        app = inspector(shown, authorize=token, allowed_hosts={*LOOPBACK, name})
        announce(link)
        if open_browser:
            webbrowser.open(link)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
