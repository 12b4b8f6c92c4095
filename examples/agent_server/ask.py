"""Talk to the server that `langgraph dev` started in this folder: take a note, approve it, and find it again."""

import sys
from typing import Any

from langgraph_sdk import get_sync_client

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:2024"
client = get_sync_client(url=url)
thread = client.threads.create()["thread_id"]


def say(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


asked: Any = client.runs.wait(thread, "notes", input=say("My boat is called Gull."))
print("the graph asks:", asked["__interrupt__"][0]["value"])
answer: Any = client.runs.wait(thread, "notes", command={"resume": "yes"})
print("the graph says:", answer["messages"][-1]["content"])
answer = client.runs.wait(thread, "notes", input=say("What is my boat called?"))
print("the graph says:", answer["messages"][-1]["content"])
print("checkpoints:", len(client.threads.get_history(thread, limit=100)))
