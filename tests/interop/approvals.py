"""Real clients see held, changed, renamed and preset prompts through the real binary, and hear of each change.

usage: python approvals.py BINARY RMCP_CLIENT [SCHEMAS]

Each client has a gateway of its own, before a library and FastMCP over HTTP, with enforced approvals and with overlays.
What is offered and what is approved changes step by step; a step comes when the client has seen the one before. With
SCHEMAS, as in run.py, every message of the gateways is validated on its way. Fails if any client does.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import run

PATIENCE = 30  # seconds for one step
POLL = 0.2  # seconds between two looks of a client that hears nothing
AT_ONCE = 4
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603

REVIEW, DIALOGUE, SUMMARY = "library__team-review", "fastmcp__dialogue", "fastmcp__summary"
GIVEN = {"change": "a patch", "focus": "security"}
CHOICES = ["correctness", "security"]
RULES = "The house rules apply."


class Approved(run.Stage):
    """A gateway that serves only what is approved, and its upstreams."""

    def set(self, binary, schemas):
        self.approvals = [binary, "approvals"]
        (self.folder / "library").mkdir()
        self.offer(1)
        fastmcp = self.start(
            [*run.FASTMCP, "http", "0"], r"listening: (\S+)", TRIGGER_FILE=str(self.trigger("fastmcp"))
        )
        self.config = self.folder / "gateway.toml"
        self.config.write_text(self.gateway_toml(fastmcp))
        self.url = self.validated(self.serve(binary, self.config), schemas)

    def gateway_toml(self, fastmcp):
        return f"""
[server]
listen = "127.0.0.1:0"
[admin]
listen = ""
[server.limits]
pre_drain = "0s"
[telemetry]
log = "error"  # much is refused here
[approvals]
mode = "enforce"
[upstreams.library]
transport = "library"
path = "library"
[upstreams.fastmcp]
transport = "http"
url = "http://{fastmcp}/mcp"
[[overlays]]
upstream = "library"
prompt = "draft-*"
rename = "team-{{1}}"
title = "Review for the team"
before = {{ text = {json.dumps(RULES)} }}
[overlays.arguments]
tenant = {{ preset = "acme" }}
language = {{ default = "English" }}
focus = {{ choices = {json.dumps(CHOICES)}, required = true }}
[[overlays]]
upstream = "fastmcp"
prompt = "*ize"
rename = "{{1}}y"
title = "Summary"
after = {{ role = "assistant", text = "Understood." }}
[overlays.arguments]
style = {{ preset = "terse" }}
"""

    def offer(self, version, more=""):
        """Writes a version of the library's prompt, with more arguments."""
        (self.folder / "library/review.md").write_text(f"""---
name: draft-review
title: Draft
description: Version {version}
arguments:
  - name: change
    required: true
  - name: tenant
  - name: language
  - name: focus
{more}---
Version {version} for {{{{ tenant }}}} in {{{{ language }}}}, {{{{ focus }}}}: {{{{ change }}}}
""")

    def decide(self, *decision):
        """Approves or rejects, as a person would."""
        command = [*self.approvals, *decision, "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise ChangeFailed(f"{' '.join(command)}: {done.stderr}")

    # What happens, step by step: see STEPS.

    def approve_library(self):
        self.decide("approve", "--upstream", "library", "--yes")

    def approve_fastmcp(self):
        self.decide("approve", "--upstream", "fastmcp", "--yes")

    def change_both(self):
        self.offer(2)
        self.add("fastmcp", "dialogue")  # in the place of the one that has this name

    def approve_both(self):
        self.decide("approve", REVIEW, DIALOGUE, "--yes")

    def reject_next(self):
        self.offer(3)
        self.decide("reject", REVIEW, "--why", "not better")

    def take_back(self):
        self.offer(2)

    def require_more(self):
        self.offer(2, "  - name: deadline\n    required: true\n")


class ChangeFailed(Exception):
    pass


def seen(prompts, gets=(), errors=(), completions=(), heard=False):
    """What a client sees, in the form of expect.json, with the definitions and with the reasons of errors. `heard`:
    after a notification. Otherwise the list stays as it was, and clients look until they see the rest; they need no
    notification then, and one does no harm."""
    names = [prompt["name"] for prompt in prompts]
    expected = {"names": names, "prompts": prompts, "gets": gets, "errors": errors, "completions": completions}
    return {**expected, "heard": heard}


def prompt(name, description, title=None, arguments=(), choices=None):
    """What is listed; of each argument, its name and whether it is required."""
    return {"name": name, "title": title, "description": description, "arguments": arguments, "choices": choices}


def get(name, arguments, *texts):
    return {"name": name, "arguments": arguments, "contains": texts, "messages": len(texts)}


def error(name, arguments, reason, code=INVALID_PARAMS):
    return {"name": name, "arguments": arguments, "reason": reason, "code": code}


def completion(typed, *values):
    return {"name": REVIEW, "argument": "focus", "value": typed, "values": values}


def review(version):
    arguments = [["change", True], ["language", False], ["focus", True]]
    return prompt(REVIEW, f"Version {version}", "Review for the team", arguments, {"focus": CHOICES})


def review_got(version):
    text = f"Version {version} for acme in {{}}, security: a patch"
    return [
        get(REVIEW, GIVEN, RULES, text.format("English")),
        get(REVIEW, {**GIVEN, "language": "Welsh"}, RULES, text.format("Welsh")),
    ]


COMPLETIONS = [completion("", *CHOICES), completion("s", "security")]
REFUSED = [
    error(REVIEW, {**GIVEN, "tenant": "other"}, "preset_argument"),
    error(REVIEW, {**GIVEN, "focus": "style"}, "no_choice"),
    error(REVIEW, {"change": "a patch"}, "missing_argument"),
]
NOT_RENAMED = error("library__draft-review", GIVEN, "unknown_prompt")
NO_REVIEW = error(REVIEW, GIVEN, "unknown_prompt")
HELD_REVIEW = error(REVIEW, GIVEN, "not_approved", INTERNAL_ERROR)

NO_DIALOGUE = error(DIALOGUE, None, "unknown_prompt")
HELD_DIALOGUE = error(DIALOGUE, None, "not_approved", INTERNAL_ERROR)
DIALOGUES = [prompt(DIALOGUE, "Two messages"), prompt(DIALOGUE, "Added later")]
DIALOGUES_GOT = [get(DIALOGUE, None, "What is MCP?", "A protocol."), get(DIALOGUE, None, "Here I am")]

SUMMARIZE = prompt(SUMMARY, "Summarizes a text", "Summary", [["text", True]])
SUMMARY_GOT = get(SUMMARY, {"text": "a book"}, "Summarize in a terse style: a book", "Understood.")
PRESET = error(SUMMARY, {"text": "a book", "style": "long"}, "preset_argument")

# Each with what happens, and what is seen after it.
STEPS = [
    (None, seen([], errors=[NO_REVIEW, NOT_RENAMED, NO_DIALOGUE])),
    (
        Approved.approve_library,
        seen([review(1)], review_got(1), [*REFUSED, NOT_RENAMED, NO_DIALOGUE], COMPLETIONS, heard=True),
    ),
    (
        Approved.approve_fastmcp,
        seen(
            [DIALOGUES[0], SUMMARIZE, review(1)],
            [*review_got(1), DIALOGUES_GOT[0], SUMMARY_GOT],
            [*REFUSED, PRESET],
            COMPLETIONS,
            heard=True,
        ),
    ),
    (
        Approved.change_both,
        seen(
            [DIALOGUES[0], SUMMARIZE, review(1)], [SUMMARY_GOT], [HELD_REVIEW, HELD_DIALOGUE, *REFUSED], COMPLETIONS
        ),
    ),
    (
        Approved.approve_both,
        seen(
            [DIALOGUES[1], SUMMARIZE, review(2)],
            [*review_got(2), DIALOGUES_GOT[1], SUMMARY_GOT],
            REFUSED,
            COMPLETIONS,
            heard=True,
        ),
    ),
    # Nothing but the text that is offered tells clients of a rejection.
    (
        Approved.reject_next,
        seen([DIALOGUES[1], SUMMARIZE, review(2)], [DIALOGUES_GOT[1]], [HELD_REVIEW, *REFUSED], COMPLETIONS),
    ),
    (
        Approved.take_back,
        seen([DIALOGUES[1], SUMMARIZE, review(2)], [*review_got(2), DIALOGUES_GOT[1]], REFUSED, COMPLETIONS),
    ),
    (
        Approved.require_more,
        seen([DIALOGUES[1], SUMMARIZE], [DIALOGUES_GOT[1], SUMMARY_GOT], [NO_REVIEW, NOT_RENAMED], heard=True),
    ),
]


def follow(stage, script, mode):
    """A client that hears: it says which step it has seen."""
    file = stage.folder / "steps.json"
    file.write_text(json.dumps([expected for _, expected in STEPS]))
    command = [*run.program(f"approvals_{script}"), stage.url, str(file), *mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout:  # the clients give up by themselves
                word, _, number = line.partition(" ")
                if word == "ok":
                    print(line, end="", flush=True)
                elif word == "seen" and int(number) + 1 < len(STEPS):
                    change, _ = STEPS[int(number) + 1]
                    change(stage)
        except BaseException:
            process.kill()
            raise
    return process.returncode == 0


def ask(stage, client):
    """rmcp, in both eras. Its client hears nothing, so it is run until it sees the step; of what is listed it looks at
    names only, and of errors at codes."""
    file = stage.folder / "step.json"
    for number, (change, expected) in enumerate(STEPS):
        if change:
            change(stage)
        file.write_text(json.dumps(expected))
        end = time.monotonic() + PATIENCE
        for mode in ("legacy", "modern"):
            command = [client, stage.url, str(file), mode]
            while (looked := subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)).returncode != 0:
                if time.monotonic() > end:
                    print(f"FAIL approvals rmcp-{mode}: step {number}: {looked.stderr}", file=sys.stderr)
                    return False
                time.sleep(POLL)
    print(f"ok approvals rmcp steps={len(STEPS)}", flush=True)
    return True


def approved(binary, schemas, body, *given):
    """Runs a client before a gateway of its own; returns whether it and every message were right."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Approved(folder, binary, schemas)
        try:
            is_right = body(stage, *given)
        except (ChangeFailed, subprocess.TimeoutExpired) as failure:
            print(f"FAIL approvals {given}: {failure}", file=sys.stderr)
            is_right = False
        finally:
            said, is_valid = stage.stop()
    if not is_valid:
        print(said, file=sys.stderr)
    return is_right and is_valid


def main(binary, rmcp_client, schemas=None):
    clients = [(follow, script, mode) for script, mode in run.CLIENTS]
    clients.append((ask, rmcp_client))
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        right = list(pool.map(lambda client: approved(binary, schemas, *client), clients))
    failed = [str(given) for (_, *given), is_right in zip(clients, right) if not is_right]
    print(f"{len(clients) - len(failed)} passed, {len(failed)} failed")
    sys.exit("\n".join(["failed:", *failed]) if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
