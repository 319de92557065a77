"""The other gateways, each a process before one server: where it listens, and how it is told."""

import base64
import dataclasses
import hashlib
import hmac
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from client import Door

HERE = pathlib.Path(__file__).resolve().parent
START = 240  # seconds


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def send(method, url, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{method} {url}: {error.code} {error.read()[:500]}") from error


@dataclasses.dataclass
class Backend:
    """What stands behind a gateway. Without a key, it passes on that of each caller if it can."""

    url: str
    key: str | None = None

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


class Peer:
    """A gateway as a process in a folder of its own. Subclasses say how it is started."""

    passes_keys = False
    sse = False
    path = "/mcp"
    caller = {}

    def __init__(self, environments, folder, backend):
        self.environments, self.folder, self.backend = environments, folder, backend
        folder.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def bin(self, program):
        return str(self.environments / f".venv-{self.package}" / "bin" / program)

    def file(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def servers(self, server):
        return self.file("servers.json", {"mcpServers": {"prompts": server}})

    def environment(self):
        return {}

    def register(self):
        pass

    def __enter__(self):
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE")}
        env = {**kept, "HOME": str(self.folder), "NO_COLOR": "1", **self.environment()}
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command(), cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        try:
            self.until_it_answers()
            self.register()
        except BaseException:
            print(self.log.read_text()[-3000:], file=sys.stderr)
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Ends it and its children: with a session of their own, they are one group."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                continue

    def until_it_answers(self):
        until = time.monotonic() + START
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.package} ended with {self.process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{self.package} did not listen within {START} s")

    def door(self, **headers):
        return Door(self.url + self.path, {**self.caller, **headers}, self.sse)


class FastMCPProxy(Peer):
    package = "fastmcp"
    passes_keys = True
    kind = "proxy"

    def command(self):
        server = {"url": self.backend.url, "transport": "http", "headers": self.backend.headers}
        script = str(HERE / "fastmcp_peer.py")
        return [self.bin("python"), script, self.kind, str(self.port), self.servers(server)]


class FastMCPMount(FastMCPProxy):
    kind = "mount"


class LiteLLM(Peer):
    package = "litellm"
    passes_keys = True
    path = "/mcp/"
    caller = {"x-litellm-api-key": "Bearer sk-master"}

    def command(self):
        server = {"transport": "http", "url": self.backend.url, "allow_elicitation": True}
        server |= {"protocol_version": "2026-07-28"}
        if self.backend.key:
            server |= {"auth_type": "bearer_token", "auth_value": self.backend.key}
        else:
            server |= {"extra_headers": ["x-api-key"]}
        revisions = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
        general = {"master_key": "sk-master", "mcp_advertised_versions": revisions}
        # JSON is YAML, too.
        config = self.file("config.yaml", {"mcp_servers": {"prompts": server}, "general_settings": general})
        return [self.bin("litellm"), "--config", config, "--host", "127.0.0.1", "--port", str(self.port)]

    def environment(self):
        # Without a salt it cannot seal cursors, and lists of more than one page are errors.
        return {"LITELLM_SALT_KEY": "salt", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


class ContextForge(Peer):
    package = "contextforge"
    path = "/mcp/"
    secret = secrets.token_urlsafe(48)  # It refuses secrets that look like words.
    admin = "admin@example.com"

    def command(self):
        return [self.bin("mcpgateway"), "--host", "127.0.0.1", "--port", str(self.port)]

    def environment(self):
        return {
            "DATABASE_URL": f"sqlite:///{self.folder}/mcp.db", "JWT_SECRET_KEY": self.secret,
            "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(48), "PLATFORM_ADMIN_EMAIL": self.admin,
            "PLATFORM_ADMIN_PASSWORD": secrets.token_urlsafe(48), "DEFAULT_USER_PASSWORD": secrets.token_urlsafe(48),
            "SSRF_ALLOW_LOCALHOST": "true", "SSRF_ALLOW_PRIVATE_NETWORKS": "true", "CACHE_TYPE": "memory",
            "USE_STATEFUL_SESSIONS": "true", "ENABLE_HEADER_PASSTHROUGH": "true",
            "ENABLE_SENSITIVE_HEADER_PASSTHROUGH": "true", "ENVIRONMENT": "development",
            # Else 100 requests a minute, and 15 minutes without any after five more.
            "RATE_LIMITING_ENABLED": "false",
        }

    @property
    def caller(self):
        return {"Authorization": f"Bearer {self.token()}"}

    def token(self):
        """A JWT for its administrator."""
        encode = lambda raw: base64.urlsafe_b64encode(raw).rstrip(b"=")
        now = int(time.time())
        claims = {
            "sub": self.admin, "email": self.admin, "iat": now, "exp": now + 86400, "jti": f"run-{self.port}",
            "aud": "mcpgateway-api", "iss": "mcpgateway", "is_admin": True, "teams": None,
            "user": {"email": self.admin, "is_admin": True, "full_name": "Admin", "auth_provider": "local"},
        }
        parts = b".".join(encode(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
        return (parts + b"." + encode(hmac.digest(self.secret.encode(), parts, hashlib.sha256))).decode()

    def register(self):
        # It connects when the server is registered, so it needs a key even where it passes on those of callers.
        body = {"name": "prompts", "url": self.backend.url, "transport": "STREAMABLEHTTP", "visibility": "public"}
        if self.backend.key:
            body |= {"auth_type": "bearer", "auth_token": self.backend.key, "passthrough_headers": ["X-API-Key"]}
        send("POST", f"{self.url}/gateways", body, **self.caller)


class McpHub(Peer):
    package = "mcp-hub"
    sse = True

    def command(self):
        config = self.servers({"url": self.backend.url, "headers": self.backend.headers})
        hub = self.environments / "node_modules/.bin/mcp-hub"
        return ["node", str(hub), "--port", str(self.port), "--config", config]


class McpProxy(Peer):
    package = "mcp-proxy"
    path = "/servers/prompts/mcp"

    def command(self):
        child = ["--transport", "streamablehttp", self.backend.url]
        for name, value in self.backend.headers.items():
            child = ["-H", name, value, *child]
        config = self.servers({"command": self.bin("mcp-proxy"), "args": child})
        return [self.bin("mcp-proxy"), "--named-server-config", config, "--port", str(self.port)]


PEERS = {
    "FastMCP proxy": FastMCPProxy,
    "FastMCP mount": FastMCPMount,
    "LiteLLM": LiteLLM,
    "ContextForge": ContextForge,
    "mcp-hub": McpHub,
    "mcp-proxy": McpProxy,
}
