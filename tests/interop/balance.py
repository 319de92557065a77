"""A balancer: each request goes to the next of its targets, however long the client keeps its connection.

usage: python balance.py HOST:PORT...     (prints where it listens)
"""

import asyncio
import itertools
import sys

HEAD = 64 << 10


async def pipe(reader, writer):
    try:
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def one_request(head):
    """The head of a request that is the last one on its connection."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def serve(reader, writer, targets):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        host, _, port = next(targets).rpartition(":")
        upstream = await asyncio.open_connection(host, int(port))
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        writer.close()
        return
    upstream[1].write(one_request(head))
    answer = asyncio.create_task(pipe(upstream[0], writer))
    rest = asyncio.create_task(pipe(reader, upstream[1]))
    await answer
    rest.cancel()
    upstream[1].close()


async def main(targets):
    turns = itertools.cycle(targets)
    server = await asyncio.start_server(lambda r, w: serve(r, w, turns), "127.0.0.1", 0, limit=HEAD)
    host, port = server.sockets[0].getsockname()
    print(f"listening: {host}:{port}", flush=True)
    await server.serve_forever()


asyncio.run(main(sys.argv[1:]))
