"""Three replicas with a real Redis before a scripted store, a real git server and a library, which fail by turns while
labels move and clients get.

usage: python3 tests/drills/soak.py PROMPTGATE [SECONDS]     default: 1800

What must hold: no get fails, and none has a text to which no label was ever moved; once its source is well, each replica
serves the last move within `DELAY`; memory and disk stay bounded.
"""

import base64
import hashlib
import hmac
import http.client
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from servers import MLflow, Proxy, free_port, run, serve_git  # noqa: E402

SECRET = "s3cret-of-webhooks"
KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
# Seconds from the end of a fault until the last move is served by all: the pause after failures, and a poll.
DELAY = 75.0
# MiB: of the folders of a replica, and by which its memory may grow after the first quarter.
DISK, GROWTH = 128, 64
CLIENTS = 6
REVISION = "2026-07-28"
PROMPTS = ("s__greet", "team__greet", "lib__greet")
CONFIG = """
[server]
listen = "127.0.0.1:{port}"
seal_key = {{ value = "{key}" }}
[admin]
listen = "127.0.0.1:{admin}"
[cluster]
store = "redis://127.0.0.1:{redis}"
[audit]
path = "audit"
keep_size = "64MiB"
[upstreams.s]
transport = "mlflow"
url = "http://127.0.0.1:{store}"
poll = "2s"
webhook_secret = {{ value = "{secret}" }}
[upstreams.team]
transport = "git"
url = "http://127.0.0.1:{git}/team.git"
poll = "2s"
walk_timeout = "10s"
webhook_secret = {{ value = "{secret}" }}
[upstreams.lib]
transport = "library"
path = "{library}"
"""


class Versions:
    """Versions of `greet` in a folder, and the label in `labels.toml`."""

    def __init__(self, folder):
        self.folder = folder
        self.numbers = itertools.count(1)

    def move(self, text):
        number = next(self.numbers)
        version = self.folder / f"greet/versions/{number}.md"
        version.parent.mkdir(parents=True, exist_ok=True)
        version.write_text(f"---\nname: greet\ndescription: d\n---\n{text}")
        # The oldest go, so that a long run has no long list.
        (version.parent / f"{number - 20}.md").unlink(missing_ok=True)
        labels = self.folder / "labels.new"
        labels.write_text(f"[greet]\nproduction = {number}\n")
        labels.rename(self.folder / "labels.toml")


class Repository(Versions):
    def __init__(self, folder):
        self.bare = folder / "served/team.git"
        run("git", "init", "-q", "--bare", "-b", "main", self.bare)
        run("git", "init", "-q", "-b", "main", folder / "work")
        super().__init__(folder / "work")

    def move(self, text):
        super().move(text)
        git = ["git", "-C", self.folder, "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        run(*git, "add", "-A")
        run(*git, "commit", "-q", "-m", text)
        run(*git, "push", "-q", "--force", self.bare, "HEAD:main")


class Replica:
    def __init__(self, binary, folder, **places):
        folder.mkdir()
        self.folder, self.port = folder, free_port()
        (folder / "gateway.toml").write_text(CONFIG.format(port=self.port, admin=free_port(), key=KEY, secret=SECRET, **places))
        self.log = (folder / "gateway.log").open("w")
        self.process = subprocess.Popen([binary, "serve"], cwd=folder, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert "listens" in self.process.stdout.readline(), (folder / "gateway.log").read_text()

    def memory(self):
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) >> 10

    def disk(self):
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file()) >> 20


def get(connection, name):
    """The text of a prompt, or why there is none."""
    meta = {"io.modelcontextprotocol/protocolVersion": REVISION, "io.modelcontextprotocol/clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": name, "_meta": meta}}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
               "MCP-Protocol-Version": REVISION, "Mcp-Method": "prompts/get", "Mcp-Name": name}
    connection.request("POST", "/mcp", json.dumps(body), headers)
    text = connection.getresponse().read().decode()
    try:
        return True, json.loads(text)["result"]["messages"][0]["content"]["text"].strip()
    except (ValueError, KeyError):
        return False, text


class Soak:
    def __init__(self, binary, folder, seconds):
        self.seconds, self.end = seconds, threading.Event()
        self.redis_port, self.redis_folder = free_port(), folder
        self.start_redis()
        self.store, self.repository = MLflow(), Repository(folder)
        self.proxy = Proxy(serve_git(self.repository.bare.parent))
        (folder / "library").mkdir()
        self.library = Versions(folder / "library")
        self.sources = dict(zip(PROMPTS, (self.store, self.repository, self.library)))
        # Each text to which a label was moved, and the last one, by prompts.
        self.moved = {name: [] for name in PROMPTS}
        self.failures, self.gets, self.moves = [], 0, 0
        for name in PROMPTS:
            self.move(name)
        places = {"redis": self.redis_port, "store": self.store.port, "git": self.proxy.port, "library": self.library.folder}
        self.replicas = [Replica(binary, folder / f"replica-{number}", **places) for number in range(3)]

    def start_redis(self):
        self.redis = subprocess.Popen(
            ["redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", ""], cwd=self.redis_folder,
            stdout=subprocess.DEVNULL)

    def move(self, name):
        """Moves the label of a prompt, and delivers the webhook to one replica."""
        self.moves += 1
        text = f"{name} {self.moves}"
        # Before the move: it may be served at once.
        self.moved[name].append(text)
        self.sources[name].move(text)

    def deliver(self, name, secret=SECRET):
        upstream, body = name.split("__")[0], "{}"
        at, sign = str(int(time.time())), lambda text: hmac.new(secret.encode(), text.encode(), hashlib.sha256)
        headers = {"Content-Type": "application/json", "X-MLflow-Delivery-Id": "1", "X-MLflow-Timestamp": at,
                   "X-MLflow-Signature": "v1," + base64.b64encode(sign(f"1.{at}.{body}").digest()).decode(),
                   "X-Hub-Signature-256": "sha256=" + sign(body).hexdigest()}
        connection = http.client.HTTPConnection("127.0.0.1", random.choice(self.replicas).port, timeout=30)
        connection.request("POST", f"/mcp/hooks/{upstream}", body, headers)
        connection.getresponse().read()

    def ask(self, number):
        """Gets all prompts again and again, at each replica in turn."""
        connections = [http.client.HTTPConnection("127.0.0.1", replica.port, timeout=60) for replica in self.replicas]
        turn = itertools.cycle(itertools.product(connections, PROMPTS))
        while not self.end.wait(0.05):
            connection, name = next(turn)
            try:
                is_text, text = get(connection, name)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                is_text, text = False, repr(error)
            self.gets += 1
            if not is_text or text not in self.moved[name]:
                self.failures.append(f"{time.strftime('%X')} client {number}, {name}: {text}")

    def keep_moving(self):
        while not self.end.wait(random.uniform(0.2, 1.0)):
            name = random.choice(PROMPTS)
            self.move(name)
            if name != PROMPTS[2] and random.random() < 0.5:
                self.deliver(name)

    def all_serve(self, name, patience):
        """Waits until each replica serves the newest move, or one that came after it."""
        newest, since = len(self.moved[name]) - 1, time.monotonic()
        for number, replica in enumerate(self.replicas):
            connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=60)
            while True:
                is_text, text = get(connection, name)
                if is_text and text in self.moved[name][newest:]:
                    break
                if time.monotonic() - since > patience:
                    sys.exit(f"LOST {self.moved[name][newest]!r} at replica {number} after {patience:.0f} s: {text}")
                time.sleep(0.2)

    def faults(self):
        """The faults by turns: what fails, how it begins, and how it ends."""
        def of(source, fault):
            return lambda: setattr(source, "fault", fault), lambda: setattr(source, "fault", None)

        def forged():
            for _ in range(200):
                self.deliver(random.choice(PROMPTS[:2]), "wrong")

        def kill_redis():
            self.redis.kill()
            self.redis.wait()

        for round_ in itertools.count():
            yield from ((f"store {fault}", *of(self.store, fault)) for fault in MLflow.FAULTS)
            yield from ((f"git {fault}", *of(self.proxy, fault)) for fault in Proxy.FAULTS)
            yield "forged webhooks", forged, lambda: None
            yield f"redis, round {round_}", kill_redis, self.start_redis

    def run(self):
        for name in PROMPTS:
            self.all_serve(name, 60)
        threads = [threading.Thread(target=self.ask, args=(number,)) for number in range(CLIENTS)]
        threads.append(threading.Thread(target=self.keep_moving))
        for thread in threads:
            thread.start()
        started, settled = time.monotonic(), None
        # Each fault lasts long enough for a walk to fail; a short soak has shorter ones.
        last = min(15.0, self.seconds / 20)
        for what, begin, end in self.faults():
            begin()
            time.sleep(last)
            end()
            if time.monotonic() - started > self.seconds / 4 and settled is None:
                settled = [replica.memory() for replica in self.replicas]
            print(f"{time.monotonic() - started:6.0f} s  {what}: {self.gets} gets, {self.moves} moves, "
                  f"{len(self.failures)} failures, {[r.memory() for r in self.replicas]} MiB", flush=True)
            if time.monotonic() - started > self.seconds or self.failures:
                break
            time.sleep(last / 2)
        self.end.set()
        for thread in threads:
            thread.join()
        for name in PROMPTS:
            self.all_serve(name, DELAY)
        self.judge(settled)

    def judge(self, settled):
        if self.failures:
            sys.exit("\n".join(["FAILED gets:", *self.failures[:20]]))
        for replica, before in zip(self.replicas, settled):
            memory, disk = replica.memory(), replica.disk()
            assert memory < before + GROWTH, f"{before} MiB of memory became {memory} MiB"
            assert disk < DISK, f"{disk} MiB on the disk"
        print(f"{self.gets} gets, {self.moves} moves: none failed, none was lost")

    def stop(self):
        self.end.set()
        for process in (*(replica.process for replica in getattr(self, "replicas", [])), self.redis):
            process.terminate()
            process.wait(60)


def main(binary, seconds="1800"):
    with tempfile.TemporaryDirectory(prefix="promptgate-soak-") as folder:
        soak = Soak(pathlib.Path(binary).resolve(), pathlib.Path(folder), float(seconds))
        try:
            soak.run()
        except BaseException:
            for replica in soak.replicas:
                print("".join((replica.folder / "gateway.log").open().readlines()[-20:]), file=sys.stderr)
            raise
        finally:
            soak.stop()


main(*sys.argv[1:])
