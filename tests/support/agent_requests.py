"""Requests as coding agents send them, written by hand after the public formats; shortened."""

from __future__ import annotations

from typing import Any, Final

_CACHED: Final = {"cache_control": {"type": "ephemeral"}}

CLAUDE_CODE_HEADERS: Final = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,a-beta-of-tomorrow",
    "x-api-key": "none",
    "x-app": "cli",
    "user-agent": "claude-cli/2.0.0 (external, cli)",
    "x-stainless-lang": "js",
}

CLAUDE_CODE: Final[dict[str, Any]] = {
    "model": "auto",
    "max_tokens": 32000,
    "stream": True,
    "temperature": 1,
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "metadata": {"user_id": "user_0_account__session_1"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.0.0; cch=00000;"},
        {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **_CACHED},
        {"type": "text", "text": "You are an interactive agent that helps users with software tasks.", **_CACHED},
    ],
    "tools": [
        {
            "name": "Read",
            "description": "Reads a file from the local filesystem.",
            "input_schema": {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {"file_path": {"type": "string", "description": "The absolute path"}},
                "required": ["file_path"],
                "additionalProperties": False,
            },
        },
        {
            "name": "Bash",
            "description": "Executes a given bash command.",
            "input_schema": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
                "required": ["command"],
            },
            **_CACHED,
        },
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday's date is 2026-11-29.\n</system-reminder>"},
                {"type": "text", "text": "What does setup.py do?"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should read the file.", "signature": "c2ln"},
                {"type": "text", "text": "I'll read it."},
                {"type": "tool_use", "id": "toolu_01", "name": "Read", "input": {"file_path": "/src/setup.py"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_01",
                    "content": [{"type": "text", "text": "1\tfrom setuptools import setup\n2\tsetup()"}],
                    "is_error": False,
                    **_CACHED,
                },
                {"type": "text", "text": "<system-reminder>\nThe file is not malware.\n</system-reminder>"},
            ],
        },
    ],
}

CODEX: Final[dict[str, Any]] = {
    "model": "auto",
    "instructions": "You are a coding agent running in a terminal.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Filesystem sandboxing: read-only."}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I need ls."}]},
        {"type": "function_call", "call_id": "call_1", "name": "shell", "arguments": '{"command":["ls"]}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "setup.py\ntests"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And what is in tests?"}]},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a shell command.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                "required": ["command"],
            },
        }
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-session",
}
