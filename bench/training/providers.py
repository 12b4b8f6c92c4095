"""Fields that model providers send with a message: ids, usage and metadata, as LangChain integrations return them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import ToolCall

from training.writer import Writer

Fields = dict[str, Any]
Calls = Sequence[ToolCall]


def openai_chat(w: Writer, *, calls: Calls) -> Fields:
    given, made = w.random.randint(200, 90_000), w.random.randint(10, 2_000)
    cached, thought = w.random.choice([0, given // 128 * 64]), w.random.choice([0, 0, w.random.randint(1, 3_000)])
    usage = {
        "completion_tokens": made,
        "prompt_tokens": given,
        "total_tokens": given + made,
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0,
            "audio_tokens": 0,
            "reasoning_tokens": thought,
            "rejected_prediction_tokens": 0,
        },
        "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": cached},
    }
    model = w.pick(
        "gpt-4o-2024-08-06",
        "gpt-4o-mini-2024-07-18",
        "gpt-4.1-2025-04-14",
        "gpt-4.1-mini-2025-04-14",
        "gpt-5-2025-08-07",
        "o3-mini-2025-01-31",
    )
    metadata = {
        "token_usage": usage,
        "model_provider": w.pick("openai", "openai", "azure"),
        "model_name": model,
        "system_fingerprint": f"fp_{w.random.getrandbits(40):010x}",
        "id": "chatcmpl-" + w.token(29),
        "service_tier": "default",
        "finish_reason": "tool_calls" if calls else w.pick("stop", "stop", "stop", "length"),
        "logprobs": None,
    }
    details = {
        "input_token_details": {"audio": 0, "cache_read": cached},
        "output_token_details": {"audio": 0, "reasoning": thought},
    }
    return {
        "additional_kwargs": {"refusal": None},
        "response_metadata": metadata,
        "usage_metadata": _usage(given, made) | details,
        "id": _run_id(w),
    }


def openai_streamed(w: Writer, *, calls: Calls) -> Fields:
    given, made = w.random.randint(200, 90_000), w.random.randint(10, 2_000)
    metadata = {
        "finish_reason": "tool_calls" if calls else "stop",
        "model_name": w.pick("gpt-4o-2024-08-06", "gpt-4.1-2025-04-14"),
        "system_fingerprint": f"fp_{w.random.getrandbits(40):010x}",
        "service_tier": "default",
        "model_provider": "openai",
    }
    return {"response_metadata": metadata, "usage_metadata": _usage(given, made), "id": "lc_run--" + w.uid()}


def openai_responses(w: Writer, *, calls: Calls) -> Fields:  # noqa: ARG001  # the Responses API gives no finish reason
    given, made = w.random.randint(200, 90_000), w.random.randint(10, 2_000)
    model = w.pick("gpt-5-2025-08-07", "gpt-5-mini-2025-08-07", "gpt-4.1-2025-04-14")
    metadata = {
        "id": f"resp_{w.random.getrandbits(192):048x}",
        "created_at": float(w.random.randint(1_740_000_000, 1_790_000_000)),
        "metadata": {},
        "model": model,
        "object": "response",
        "service_tier": "default",
        "status": "completed",
        "model_provider": "openai",
        "model_name": model,
    }
    details = {
        "input_token_details": {"cache_read": 0},
        "output_token_details": {"reasoning": w.random.randint(0, 1_500)},
    }
    return {"response_metadata": metadata, "usage_metadata": _usage(given, made) | details, "id": metadata["id"]}


def anthropic(w: Writer, *, calls: Calls) -> Fields:
    given, made, read = (
        w.random.randint(3, 20_000),
        w.random.randint(10, 3_000),
        w.random.choice([0, w.random.randint(1_000, 80_000)]),
    )
    model = w.pick(
        "claude-sonnet-4-20250514",
        "claude-sonnet-4-5-20250929",
        "claude-3-5-sonnet-20241022",
        "claude-3-5-haiku-20241022",
        "claude-opus-4-1-20250805",
    )
    usage = {
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": read,
        "input_tokens": given,
        "output_tokens": made,
        "server_tool_use": None,
        "service_tier": "standard",
    }
    metadata = {
        "id": "msg_01" + w.token(22),
        "model": model,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": usage,
        "model_name": model,
        "model_provider": "anthropic",
    }
    details = {
        "input_token_details": {
            "cache_read": read,
            "cache_creation": 0,
            "ephemeral_5m_input_tokens": 0,
            "ephemeral_1h_input_tokens": 0,
        }
    }
    return {"response_metadata": metadata, "usage_metadata": _usage(given, made) | details, "id": _run_id(w)}


def google(w: Writer, *, calls: Calls) -> Fields:
    given, made = w.random.randint(200, 90_000), w.random.randint(10, 2_000)
    metadata = {
        "prompt_feedback": {"block_reason": 0, "safety_ratings": []},
        "finish_reason": "STOP",
        "model_name": w.pick("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.0-flash"),
        "safety_ratings": [],
        "grounding_metadata": {},
        "model_provider": "google_genai",
    }
    details = {
        "input_token_details": {"cache_read": 0},
        "output_token_details": {"reasoning": w.random.randint(0, 900)},
    }
    extra: Fields = {}
    if calls:
        extra["function_call"] = {"name": calls[0]["name"], "arguments": json.dumps(calls[0]["args"])}
        extra["__gemini_function_call_thought_signatures__"] = {
            w.uid(): base64.b64encode(w.random.randbytes(120)).decode()
        }
    return {
        "additional_kwargs": extra,
        "response_metadata": metadata,
        "usage_metadata": _usage(given, made) | details,
        "id": _run_id(w),
    }


def bedrock(w: Writer, *, calls: Calls) -> Fields:
    request = w.uid()
    headers = {
        "date": "Mon, 01 Jul 2024 09:30:00 GMT",
        "content-type": "application/json",
        "content-length": "912",
        "connection": "keep-alive",
        "x-amzn-requestid": request,
    }
    metadata = {
        "ResponseMetadata": {"RequestId": request, "HTTPStatusCode": 200, "HTTPHeaders": headers, "RetryAttempts": 0},
        "stopReason": "tool_use" if calls else "end_turn",
        "metrics": {"latencyMs": [w.random.randint(300, 20_000)]},
        "model_provider": "bedrock_converse",
        "model_name": "anthropic.claude-3-5-sonnet-20240620-v1:0",
    }
    return {
        "response_metadata": metadata,
        "usage_metadata": _usage(w.random.randint(200, 9_000), w.random.randint(10, 900)),
        "id": _run_id(w),
    }


def ollama(w: Writer, *, calls: Calls) -> Fields:  # noqa: ARG001  # a local model says "stop" for both
    given, made = w.random.randint(20, 9_000), w.random.randint(10, 900)
    metadata = {
        "model": w.pick("llama3.1", "qwen2.5:14b", "mistral-nemo", "gpt-oss:20b"),
        "created_at": w.moment(),
        "done": True,
        "done_reason": "stop",
        "total_duration": w.random.getrandbits(32),
        "load_duration": w.random.getrandbits(26),
        "prompt_eval_count": given,
        "prompt_eval_duration": w.random.getrandbits(28),
        "eval_count": made,
        "eval_duration": w.random.getrandbits(31),
        "logprobs": None,
        "model_name": "llama3.1",
        "model_provider": "ollama",
    }
    return {"response_metadata": metadata, "usage_metadata": _usage(given, made), "id": _run_id(w)}


_PROVIDERS: dict[Callable[..., Fields], int] = {
    openai_chat: 8,
    openai_streamed: 2,
    openai_responses: 3,
    anthropic: 7,
    google: 4,
    bedrock: 1,
    ollama: 2,
}


def envelope(w: Writer, *, calls: Calls) -> Fields:
    provider = w.random.choices(list(_PROVIDERS), list(_PROVIDERS.values()))[0]
    return provider(w, calls=calls)


def _usage(given: int, made: int) -> Fields:
    return {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}


def _run_id(w: Writer) -> str:
    return w.pick("run-", "run--", "lc_run--") + w.uid() + w.pick("", "-0")
