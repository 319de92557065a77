"""Other gateways before the real binary, and behind it: what arrives of 1,000 prompts, and what does not.

usage: python run.py BINARY [PEER…]

Run with the Python of `.venv-fastmcp`; the environments of the others and the Node packages stand beside it. Each
gateway is started before promptgate, then promptgate before it. Every row of the tables below must be as it is there:
a gateway that loses less than the table says fails as well, since README.md would be wrong.
"""

import asyncio
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import early_close
from client import Door, Look, client
from expected import BEFORE, BEHIND
from peers import PEERS, Backend, LiteLLM

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 120  # seconds until the first list, and for each row


class Process:
    """A process that says where it listens, in the words of `pattern`."""

    def __init__(self, command, pattern, folder):
        self.log = (folder / "log").open("a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=folder)
        for line in self.process.stdout:
            if found := re.search(pattern, line):
                self.address = found.group(1)
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise RuntimeError(f"{command[0]} ended: {(folder / 'log').read_text()[-2000:]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


def thousand(folder):
    return Process([sys.executable, str(HERE / "upstream.py")], r"listening: (\S+)", folder)


class Keys:
    """The key of a gateway in front, which may use all, and that of alice, who may use ten."""

    def __init__(self, binary):
        words = [
            subprocess.run([binary, "key", "new", caller], capture_output=True, text=True, check=True).stdout
            for caller in ("gateway", "alice")
        ]
        self.gateway, self.alice = (re.search(r"pg_\S+", said).group(0) for said in words)
        entries = "".join(said[said.index("[[auth.api_keys]]"):] for said in words)
        rule = '[[access.rules]]\nallow = ["list", "get", "complete"]\n'
        self.toml = f'{entries}\n{rule}callers = ["gateway"]\n{rule}callers = ["alice"]\nprompts = ["p00*"]\n'


def promptgate(binary, folder, upstream, more="", page_size=1000):
    """Serves one upstream, a table of TOML."""
    folder.mkdir(exist_ok=True)
    (folder / "gateway.toml").write_text(
        '[server]\nlisten = "127.0.0.1:0"\n[server.limits]\npre_drain = "0s"\n[admin]\nlisten = ""\n'
        f'[audit]\npath = ""\n[listing]\npage_size = {page_size}\n{more}[upstreams.up]\n{upstream}')
    return Process([binary, "serve"], r"listens on (\S+)", folder)


async def filled(look):
    """Waits for the first list: most gateways connect after they listen."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            async with asyncio.timeout(PATIENCE):
                if await look.listed() != "0":
                    return
        except Exception as error:
            said = error
        else:
            said = "an empty list"
        if time.monotonic() > until:
            raise AssertionError(f"no list within {PATIENCE} s: {said!r}")
        await asyncio.sleep(0.5)


async def grow(server, name):
    async with client(Door(f"http://{server}/mcp")) as one:
        await one.get_prompt("grow", {"topic": name})


async def table(look, change):
    """Each row of the table, by its name; `change` adds a prompt to the server's list."""
    await filled(look)
    rows = {
        "revision": look.revision,
        "name": look.name,
        "listed": look.listed,
        "got": look.got,
        "lost": look.definition,
        "completed": look.completed,
        "unknown prompt": look.unknown,
        "missing argument": look.missing,
        "question": look.questions,
        "change": lambda: look.changed(change),
    }
    found = {}
    for name, row in rows.items():
        try:
            async with asyncio.timeout(PATIENCE):
                found[name] = await row()
        except Exception as error:
            found[name] = f"failed: {error!r}"[:200]
    return found


async def before(kind, binary, folder, keys):
    """promptgate as the server of another gateway."""
    with thousand(folder) as server:
        upstream = f'transport = "http"\nurl = "http://{server.address}/mcp"\nprefix = ""\n'
        with (
            promptgate(binary, folder / "whole", upstream, keys.toml) as whole,
            promptgate(binary, folder / "paged", upstream, keys.toml, page_size=100) as paged,
        ):
            for gateway in (whole, paged):
                await filled(Look(Door(gateway.address, {"X-API-Key": keys.gateway})))
            found = {}
            with kind(HERE, folder / "peer-paged", Backend(paged.address, keys.gateway)) as peer:
                look = Look(peer.door())
                await filled(look)
                found["listed in pages of 100"] = await look.listed()
            own = Backend(whole.address, None if kind.passes_keys else keys.gateway)
            with kind(HERE, folder / "peer-own", own) as peer:
                look = Look(peer.door(**{"X-API-Key": keys.alice}))
                await filled(look)
                found["listed for alice"] = await look.listed()
            with kind(HERE, folder / "peer", Backend(whole.address, keys.gateway)) as peer:
                found |= await table(Look(peer.door()), lambda name: grow(server.address, name))
                if isinstance(peer, LiteLLM):
                    found["sessions after an early close"] = early_close.sessions(peer)
    return found


def dialled(binary, folder):
    """The words of `check --dial` about the upstream."""
    said = subprocess.run([binary, "check", "--dial", "--json"], capture_output=True, text=True, cwd=folder)
    report = json.loads(said.stdout)
    row = report["upstreams"][0]
    notifies = "notifies" if row.get("listChanged") else "does not notify"
    return f"{row.get('revision')}, {notifies}, pages {row.get('pages')}, {row.get('listed')} of {row.get('prompts')}"


def upstream_of(peer):
    door = peer.door()
    headers = ", ".join(f"{json.dumps(name)} = {{ value = {json.dumps(value)} }}" for name, value in door.headers.items())
    transport = "sse" if door.sse else "http"
    return f'transport = "{transport}"\nurl = "{door.url}"\npoll = "2s"\nheaders = {{ {headers} }}\n'


async def behind(kind, binary, folder, keys):
    """Another gateway as an upstream of promptgate."""
    with thousand(folder) as server, kind(HERE, folder / "peer", Backend(f"http://{server.address}/mcp")) as peer:
        await filled(Look(peer.door()))
        with promptgate(binary, folder / "gate", upstream_of(peer)) as gate:
            found = {"dialled": dialled(binary, folder / "gate")}
            found |= await table(Look(Door(gate.address)), lambda name: grow(server.address, name))
            del found["revision"]  # the gateway's own
    return found


def differences(found, expected):
    for row in dict.fromkeys([*expected, *found]):
        if found.get(row) != expected.get(row):
            yield f"{row}: {found.get(row)!r}, the table says {expected.get(row)!r}"


def compared(name, direction, way, expected, binary, keys):
    """Prints what arrives, and returns what differs from the table."""
    title, started = f"{name} {direction} promptgate", time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = asyncio.run(way(PEERS[name], binary, pathlib.Path(folder), keys))
        except Exception as error:  # The others are still compared.
            traceback.print_exception(error)
            return [f"{title}: {error!r}"]
    print(f"{title}, {time.monotonic() - started:.0f} s: {json.dumps(found, indent=1)}", flush=True)
    return [f"{title}, {line}" for line in differences(found, expected[name])]


def main(binary, *chosen):
    # What is started ends with this process, also when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    binary = str(pathlib.Path(binary).resolve())
    keys, failed = Keys(binary), []
    for name in chosen or PEERS:
        failed += compared(name, "before", before, BEFORE, binary, keys)
        failed += compared(name, "behind", behind, BEHIND, binary, keys)
    sys.exit("\n".join(["failed:", *failed]) if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
