"""The tables of tests/neighbours/README.md, row by row: a change here is a change of that page."""

# Each gateway before promptgate: what its clients see.
BEFORE = {
    "FastMCP proxy": {
        "listed": "1000",
        "listed in pages of 100": "1000",
        "listed for alice": "10",
        "revision": "2026-07-28",
        "name": "test_simple_prompt",
        "got": "24 of 24",
        "lost": "nothing",
        "completed": "-32601",
        "unknown prompt": "-32602 \"Unknown prompt: 'nosuch'\"",
        "missing argument": "-32602 missing_argument",
        "question": "2025-11-25: 'answered'; 2026-07-28: 'answered'",
        "change": "2025-11-25: not notified, listed; 2026-07-28: not notified, listed",
    },
    "LiteLLM": {
        "listed": "1000",
        "listed in pages of 100": "1000",
        "listed for alice": "10",
        "revision": "2026-07-28",
        "name": "prompts-test_simple_prompt",
        "got": "24 of 24",
        "lost": "nothing",
        "completed": "-32601",
        "unknown prompt": "-32602 unknown_prompt",
        "missing argument": "-32602 missing_argument",
        "question": "2025-11-25: 'answered'; 2026-07-28: 'answered'",
        "change": "2025-11-25: notified, listed; 2026-07-28: notified, listed",
        "sessions after an early close": "/mcp: some lost; /mcp/: all kept; /mcp read to its end: all kept",
    },
    "ContextForge": {
        "listed": "1000",
        "listed in pages of 100": "1000",
        "listed for alice": "1000",
        "revision": "2026-07-28",
        "name": "prompts-test-simple-prompt",
        "got": "23 of 24; resource: -32603",
        "lost": "icons, _meta, argument title",
        "completed": "3 of 3",
        "unknown prompt": "-32602 'Unknown prompt: prompts-nosuch'",
        "missing argument": "-32602 missing_argument",
        "question": "2025-11-25: -32021; 2026-07-28: -32021",
        "change": "2025-11-25: not notified, not listed; 2026-07-28: not notified, not listed",
    },
    "mcp-hub": {
        "listed": "1000",
        "listed in pages of 100": "100",
        "listed for alice": "1000",
        "revision": "2025-06-18",
        "name": "prompts__test_simple_prompt",
        "got": "24 of 24",
        "lost": "nothing",
        "completed": "-32601",
        "unknown prompt": "-32603 'key is not defined'",
        "missing argument": "-32602 'MCP error -32602: Failed to read resource: MCP error -32602:'",
        "question": "2025-06-18: -32602",
        "change": "2025-06-18: notified, listed",
    },
    "mcp-proxy": {
        "listed": "1000",
        "listed in pages of 100": "1000",
        "listed for alice": "1000",
        "revision": "2025-11-25",
        "name": "test_simple_prompt",
        "got": "24 of 24",
        "lost": "nothing",
        "completed": "3 of 3",
        "unknown prompt": "-32602 unknown_prompt",
        "missing argument": "-32602 missing_argument",
        "question": "2025-11-25: -32021",
        "change": "2025-11-25: not notified, listed",
    },
}
BEFORE["FastMCP mount"] = BEFORE["FastMCP proxy"] | {
    "name": "prompts_test_simple_prompt",
    "unknown prompt": "-32602 \"Unknown prompt: 'prompts_nosuch'\"",
}

# promptgate before each gateway, which stands before the server; the list is polled every two seconds.
BEHIND = {
    "FastMCP proxy": {
        "dialled": "2026-07-28, does not notify, pages 1, 1000 of 1000",
        "listed": "1000",
        "name": "up__test_simple_prompt",
        "got": "24 of 24",
        "lost": "nothing",
        "completed": "0 of 3",
        "unknown prompt": "-32602 unknown_prompt",
        "missing argument": "-32602 missing_argument",
        "question": "2025-11-25: 'answered'; 2026-07-28: 'answered'",
        "change": "2025-11-25: notified, listed; 2026-07-28: notified, listed",
    },
}
BEHIND["FastMCP mount"] = BEHIND["FastMCP proxy"] | {"name": "up__prompts_test_simple_prompt"}
BEHIND["LiteLLM"] = BEHIND["FastMCP proxy"] | {
    "dialled": "2026-07-28, notifies, pages 1, 1000 of 1000",
    "name": "up__prompts-test_simple_prompt",
}
BEHIND["mcp-hub"] = BEHIND["FastMCP proxy"] | {
    "dialled": "2025-06-18, notifies, pages 1, 1000 of 1000",
    "name": "up__prompts__test_simple_prompt",
    "question": "2025-11-25: -32602; 2026-07-28: -32602",
}
BEHIND["mcp-proxy"] = BEHIND["FastMCP proxy"] | {
    "dialled": "2025-11-25, does not notify, pages 1, 1000 of 1000",
    "completed": "3 of 3",
    "question": "2025-11-25: -32602; 2026-07-28: -32602",
}
BEHIND["ContextForge"] = BEHIND["FastMCP proxy"] | {
    "dialled": "2026-07-28, does not notify, pages 10, 1000 of 1000",
    "name": "up__prompts-test-simple-prompt",
    "got": "23 of 24; resource: -32603",
    "lost": "icons, _meta, argument title",
    "completed": "3 of 3",
    "question": "2025-11-25: -32603; 2026-07-28: -32603",
    "change": "2025-11-25: not notified, not listed; 2026-07-28: not notified, not listed",
}
