"""Servers of the drills: a real git server over http or https, a scripted MLflow, and a proxy that fails on demand."""

import base64
import http.server
import json
import os
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True, capture_output=True, **options).stdout


class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, headers, content=b""):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # A gateway has given up its request.


def serve(handler, tls=None):
    """Serves at a free port; returns it. `tls` are the files of a certificate and its key."""
    server = Server(("127.0.0.1", 0), handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def serve_git(folder, password=None, tls=None):
    """Serves the bare repositories of a folder with `git http-backend`; `password` is that of the user ada."""
    credential = "Basic " + base64.b64encode(f"ada:{password}".encode()).decode()

    class Backend(Quiet):
        def do_GET(self):
            if password and self.headers.get("Authorization") != credential:
                return self.answer(401, [("WWW-Authenticate", "Basic")])
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            environment = {**os.environ, "GIT_PROJECT_ROOT": str(folder), "GIT_HTTP_EXPORT_ALL": "1",
                           "REQUEST_METHOD": self.command, "PATH_INFO": path, "QUERY_STRING": query,
                           "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
                           "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                           "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", "")}
            told = subprocess.run(["git", "-c", "safe.directory=*", "http-backend"], input=body, env=environment,
                                  capture_output=True, check=True).stdout
            head, _, content = told.partition(b"\r\n\r\n")
            headers = [line.split(": ", 1) for line in head.decode().splitlines()]
            self.answer(200, [each for each in headers if each[0] != "Content-Length"], content)

        do_POST = do_GET

    return serve(Backend, tls)


class MLflow:
    """A store of one prompt `greet`, whose alias `production` moves; `fault` is how it fails at present."""

    FAULTS = ("503", "hang", "empty", "forbidden", "not_json")

    def __init__(self):
        self.texts, self.production, self.fault = ["store 1"], 1, None
        store = self

        class Handler(Quiet):
            def do_GET(self):
                store.serve(self)

        self.port = serve(Handler)

    def move(self, text):
        self.texts.append(text)
        self.production = len(self.texts)

    def version(self, number):
        tags = {"mlflow.prompt.is_prompt": "true", "_mlflow_prompt_type": "text", "mlflow.prompt.text": self.texts[number - 1]}
        return {"version": str(number), "tags": [{"key": key, "value": value} for key, value in tags.items()]}

    def serve(self, request):
        fault, path = self.fault, urllib.parse.urlsplit(request.path)
        is_list = path.path.endswith("/search")
        if fault == "503":
            return request.answer(503, [])
        if fault == "hang":
            while self.fault == "hang":
                time.sleep(0.1)
            return request.answer(503, [])
        if fault == "not_json":
            return request.answer(200, [("Content-Type", "text/html")], b"<p>sign in")
        if fault == "forbidden" and not is_list:
            return request.answer(403, [])
        if is_list:
            alias = {"alias": "production", "version": str(self.production)}
            model = {"name": "greet", "creation_timestamp": 1, "last_updated_timestamp": len(self.texts),
                     "aliases": [alias], "latest_versions": [self.version(len(self.texts))]}
            body = {"registered_models": [] if fault == "empty" else [model]}
        else:
            body = {"model_version": self.version(int(urllib.parse.parse_qs(path.query)["version"][0]))}
        request.answer(200, [("Content-Type", "application/json")], json.dumps(body).encode())


class Proxy:
    """Passes connections on to a port; `fault` is how it fails at present."""

    FAULTS = ("refuse", "hang", "cut")
    # Bytes of the answers after which a connection is cut.
    CUT_AFTER = 600

    def __init__(self, target):
        self.target, self.fault = target, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            if self.fault == "refuse":
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.target))
            for ends in ((client, server, False), (server, client, True)):
                threading.Thread(target=self.copy, args=ends, daemon=True).start()

    def copy(self, source, target, is_answer):
        passed = 0
        try:
            while data := source.recv(65536):
                while self.fault == "hang":
                    time.sleep(0.1)
                passed += len(data)
                if self.fault == "cut" and is_answer and passed > self.CUT_AFTER:
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
