"""The gateway before a real MLflow and a real Phoenix: versions, moved labels, deletions, an outage.

usage: python3 tests/stores/run.py PROMPTGATE MLFLOW_VENV PHOENIX_VENV
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

POLL = 2.0
# From a change in the store to the text of a get; a second more for the command itself.
DELAY = POLL + 2.0
# The same after a webhook, whatever the poll is.
HOOK_DELAY = 2.0 + 1.0
SECRET = "s3cret-of-webhooks"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait(what, holds, patience):
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > patience:
            sys.exit(f"FAILED within {patience:.0f} s: {what}")
        time.sleep(0.1)
    print(f"ok {time.monotonic() - started:5.1f} s  {what}", flush=True)


class Store:
    """A store as a process, which keeps its data when it is stopped."""

    def __init__(self, venv, folder):
        self.venv, self.folder, self.port = pathlib.Path(venv).resolve(), folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self):
        environment = os.environ | self.environment()
        log = open(self.folder / "store.log", "a")
        self.process = subprocess.Popen(
            self.command(), cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        wait(f"{self.name} answers", self.answers, 180)

    def stop(self):
        os.killpg(self.process.pid, 15)
        self.process.wait(60)
        wait(f"{self.name} is gone", lambda: not self.answers(), 30)

    def answers(self):
        try:
            self.send("GET", self.probe)
            return True
        except (OSError, urllib.error.URLError):
            return False

    def send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
            return json.loads(text) if text else None


class MLflow(Store):
    name = "mlflow"
    probe = "/api/2.0/mlflow/registered-models/search"

    def command(self):
        return [self.venv / "bin/mlflow", "server", "--backend-store-uri", "sqlite:///mlflow.db",
                "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]

    def environment(self):
        path = f"{self.venv / 'bin'}:{os.environ['PATH']}"
        # It keeps the webhooks of an event for a minute, also that there are none.
        webhooks = {"MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https", "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
                    "MLFLOW_WEBHOOK_CACHE_TTL": "0"}
        return {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PATH": path} | webhooks

    def call(self, method, path, **body):
        return self.send(method, f"/api/2.0/mlflow/{path}", body)

    def create(self, name, messages):
        mark = {"key": "mlflow.prompt.is_prompt", "value": "true"}
        try:
            self.call("POST", "registered-models/create", name=name, tags=[mark])
        except urllib.error.HTTPError:
            pass  # It has versions already.
        kind = "text" if isinstance(messages, str) else "chat"
        text = messages if kind == "text" else json.dumps(messages)
        tags = [mark, {"key": "_mlflow_prompt_type", "value": kind}, {"key": "mlflow.prompt.text", "value": text}]
        made = self.call("POST", "model-versions/create", name=name, source="dummy-source", tags=tags)
        return made["model_version"]["version"]

    def promote(self, name, version):
        self.call("POST", "registered-models/alias", name=name, alias="production", version=version)

    def rename(self, name, new):
        self.call("POST", "registered-models/rename", name=name, new_name=new)
        return True

    def delete(self, name):
        self.call("DELETE", "registered-models/delete", name=name)

    def tell(self, url, secret):
        events = [{"entity": "PROMPT_ALIAS", "action": "CREATED"}]
        self.call("POST", "webhooks", name="gateway", url=url, events=events, secret=secret)
        return True


class Phoenix(Store):
    name = "phoenix"
    probe = "/v1/prompts?limit=1"

    def command(self):
        return [self.venv / "bin/phoenix", "serve"]

    def environment(self):
        return {"PHOENIX_WORKING_DIR": str(self.folder), "PHOENIX_HOST": "127.0.0.1",
                "PHOENIX_PORT": str(self.port), "PHOENIX_GRPC_PORT": str(free_port())}

    def create(self, name, messages):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        version = {"model_provider": "OPENAI", "model_name": "m", "template_type": "CHAT",
                   "template_format": "MUSTACHE", "template": {"type": "chat", "messages": messages},
                   "invocation_parameters": {"type": "openai", "openai": {}}}
        made = self.send("POST", "/v1/prompts", {"prompt": {"name": name}, "version": version})
        return made["data"]["id"]

    def promote(self, name, version):
        self.send("POST", f"/v1/prompt_versions/{version}/tags", {"name": "production"})

    def rename(self, name, new):
        return False  # Its API has no way.

    def delete(self, name):
        self.send("DELETE", f"/v1/prompts/{urllib.parse.quote(name)}")

    def tell(self, url, secret):
        return False  # It sends no webhooks.


class Gateway:
    def __init__(self, binary, folder, store):
        self.binary, self.folder = pathlib.Path(binary).resolve(), folder
        self.store, self.port, self.admin = store, free_port(), free_port()
        self.configure(f'poll = "{POLL:.0f}s"')

    def configure(self, *keys):
        (self.folder / "gateway.toml").write_text(
            f'[server]\nlisten = "127.0.0.1:{self.port}"\n[admin]\nlisten = "127.0.0.1:{self.admin}"\n'
            f'[audit]\npath = ""\n[upstreams.s]\ntransport = "{self.store.name}"\nurl = "{self.store.url}"\n'
            + "".join(f"{key}\n" for key in [*keys, "[end]"]))

    def start(self):
        log = open(self.folder / "gateway.log", "a")
        self.process = subprocess.Popen([self.binary, "serve"], cwd=self.folder, stdout=log, stderr=log)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def run(self, *arguments):
        done = subprocess.run([self.binary, *arguments], cwd=self.folder, capture_output=True, text=True)
        return done.stdout

    def has(self, name):
        return f"s__{name}" in self.run("list")

    def texts(self, name, *arguments):
        try:
            messages = json.loads(self.run("get", "--json", f"s__{name}", *arguments))["messages"]
        except (ValueError, KeyError):
            return []
        return [message["content"]["text"] for message in messages]

    def is_failing(self):
        rows = json.loads(self.run("status", "--json") or "{}").get("upstreams", {})
        return '"error"' in json.dumps(rows)


def story(store, gateway):
    first = store.create("greet", "Hello {{ who }}")
    store.promote("greet", first)
    chat = [{"role": "user", "content": "{{ ticket }}"}, {"role": "assistant", "content": "Severity:"}]
    store.promote("triage", store.create("triage", chat))
    gateway.start()
    wait("both prompts are listed", lambda: gateway.has("greet") and gateway.has("triage"), 60)
    greet = lambda: gateway.texts("greet", "who=Ada")
    wait("a text is filled in", lambda: greet() == ["Hello Ada"], DELAY)
    wait("a chat is filled in", lambda: gateway.texts("triage", "ticket=T1") == ["T1", "Severity:"], DELAY)
    second = store.create("greet", "Good day {{ who }}")
    store.promote("greet", second)
    wait("a new version is served once it has the label", lambda: greet() == ["Good day Ada"], DELAY)
    store.promote("greet", first)
    wait("the label moves back", lambda: greet() == ["Hello Ada"], DELAY)
    assert not gateway.is_failing(), "nothing fails yet"
    if store.tell(f"http://127.0.0.1:{gateway.port}/mcp/hooks/s", SECRET):
        gateway.stop()
        gateway.configure('poll = "1h"', f'webhook_secret = {{ value = "{SECRET}" }}')
        gateway.start()
        wait("the text is as before", lambda: greet() == ["Hello Ada"], 60)
        store.promote("greet", second)
        wait("a webhook has the label followed", lambda: greet() == ["Good day Ada"], HOOK_DELAY)
        store.promote("greet", first)
        wait("and back", lambda: greet() == ["Hello Ada"], HOOK_DELAY)
        gateway.stop()
        gateway.configure(f'poll = "{POLL:.0f}s"')
        gateway.start()
        wait("polling again", lambda: greet() == ["Hello Ada"], 60)
    store.stop()
    wait("the outage is said", gateway.is_failing, 60)
    assert greet() == ["Hello Ada"], "the last version is served"
    gateway.stop()
    gateway.start()
    wait("a gateway without its store says so", gateway.is_failing, 60)
    store.start()
    wait("both come up", lambda: greet() == ["Hello Ada"], 120)
    store.promote("greet", second)
    wait("the label moves", lambda: greet() == ["Good day Ada"], DELAY)
    if store.rename("triage", "sorting"):
        wait("a renamed prompt", lambda: gateway.has("sorting") and not gateway.has("triage"), DELAY)
        store.delete("sorting")
    else:
        store.delete("triage")
    wait("a deleted prompt is gone", lambda: not gateway.has("triage") and not gateway.has("sorting"), DELAY)


def main():
    binary, *venvs = sys.argv[1:]
    for kind, venv in zip((MLflow, Phoenix), venvs, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            store = kind(venv, pathlib.Path(folder))
            store.start()
            gateway = Gateway(binary, pathlib.Path(folder), store)
            try:
                story(store, gateway)
            finally:
                for process in (store.process, getattr(gateway, "process", None)):
                    if process and process.poll() is None:
                        process.terminate()
                        process.wait(60)


main()
