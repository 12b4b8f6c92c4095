"""A CubeLoop agent that continues after a restart, and again in a fork. A faux provider answers: no API key needed."""

import asyncio
import tempfile

from cubeloop import Agent, Message, TextContent, tool
from cubeloop.providers import FauxProvider, faux_assistant_message, faux_tool_call

import threadkeep


@tool
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"order {order} left the harbour on Monday"


def agent(keep: threadkeep.Keep, thread_id: str, *answers: str, looks_up: str | None = None) -> Agent[Message]:
    """Return an agent on a thread. Its model calls the tool if `looks_up` is given, then gives these answers."""
    provider = FauxProvider(provider_id="faux")
    calls = [faux_assistant_message(faux_tool_call("look_up", {"order": looks_up}))] if looks_up else []
    provider.set_responses([*calls, *map(faux_assistant_message, answers)])
    return Agent(model=provider.model("faux"), tools=[look_up], checkpointer=keep.cube, thread_id=thread_id)


async def show(keep: threadkeep.Keep, thread_id: str) -> int:
    """Print a stored thread, and return its number of messages."""
    data = await keep.cube.load(thread_id)
    assert data is not None
    print(f"  {thread_id}" + (f", forked from {data.parent_thread_id}" if data.parent_thread_id else ""))
    for message in data.messages:
        texts = [part.text if isinstance(part, TextContent) else "(calls look_up)" for part in message.content]
        print(f"    {message.role:<12} {' '.join(texts)}")
    return len(data.messages)


async def main(url: str) -> None:
    print("The first process:")
    async with threadkeep.open(url) as keep:
        first = await agent(keep, "order", "It is at sea.", looks_up="A7").prompt("Where is order A7?")
        assert await show(keep, "order") == 4

    print("After a restart, the agent knows the conversation:")
    async with threadkeep.open(url) as keep:
        again = agent(keep, "order", "On Friday.")
        await again.prompt("When will it be here?")
        assert len(again.state.messages) == 6

        print("A fork, from the end of the first run:")
        await keep.cube.fork("order", "order-fork", after_run_id=first, metadata={"why": "what if it is cancelled"})
        await agent(keep, "order-fork", "Then it turns round.").prompt("And if I cancel it?")
        assert await show(keep, "order") == 6
        assert await show(keep, "order-fork") == 6

        print("All threads:")
        for info in await keep.athreads(order="id"):
            print(f"  {info.id:<11} {info.kind}  {info.status}  {info.step} messages, {info.bytes} bytes")

        await keep.adelete("order")
        assert [info.id for info in await keep.athreads()] == ["order-fork"]


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(f"sqlite:///{folder}/orders.db"))
