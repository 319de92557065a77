"""A hook that asks a moderation model with the interface of OpenAI's `/v1/moderations`.

usage: GUARD_SECRET=whsec_… OPENAI_API_KEY=… moderation.py [PORT]

MODERATION_URL names another server with this interface. A failure of the model is an error of the hook, so
that `on_failure` of the guard decides.
"""

import json
import os
import urllib.request

import hook

URL = os.environ.get("MODERATION_URL", "https://api.openai.com/v1/moderations")
MODEL = os.environ.get("MODERATION_MODEL", "omni-moderation-latest")


def decide(message):
    written = [text for _, text in hook.texts(message)]
    if not written:
        return {"decision": "allow"}
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    body = json.dumps({"model": MODEL, "input": written}).encode()
    with urllib.request.urlopen(urllib.request.Request(URL, body, headers), timeout=5) as response:
        results = json.load(response)["results"]
    categories = sorted({name for result in results for name, is_found in result["categories"].items() if is_found})
    if not any(result["flagged"] for result in results):
        return {"decision": "allow"}
    reason = "".join(c if c.isalnum() else "_" for c in (categories or ["flagged"])[0].lower())
    return {"decision": "deny", "reason": reason, "message": "The moderation of this gateway refuses this text."}


if __name__ == "__main__":
    hook.serve(decide)
