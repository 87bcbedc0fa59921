"""A server in a few lines that fails in one chosen way, and writes down what was asked of it.

    python stub_server.py BEHAVIOUR NOTES --host HOST --port PORT

NOTES is a folder: `requests.jsonl` gets a line per completion, `pids` the process ids of the server and its children.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BEHAVIOUR, NOTES, PORT = sys.argv[1], Path(sys.argv[2]), int(sys.argv[sys.argv.index("--port") + 1])
FOREVER_S = 600
running = decodes = 0
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        (NOTES / "asked").touch()
        if self.path == "/health" and BEHAVIOUR == "hang-health":
            time.sleep(FOREVER_S)
        if self.path == "/health" and BEHAVIOUR == "never-healthy":
            return self.answer(503, b"")
        if self.path == "/version" and BEHAVIOUR != "no-version":
            return self.answer(200, b'{"version": "1.2.3"}')
        return self.answer(200 if self.path == "/health" else 404, b"")

    def do_POST(self) -> None:
        global running, decodes
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prefill = request["max_tokens"] == 1
        with lock:
            running += 1
            decodes += not prefill
            note = {"prompt": request["prompt"], "max_tokens": request["max_tokens"], "salt": request["cache_salt"]}
            with (NOTES / "requests.jsonl").open("a") as file:
                file.write(json.dumps(note | {"running": running}) + "\n")
        if not prefill:
            time.sleep(0.1)  # so that requests of one batch overlap
        if BEHAVIOUR == "die-in-prefill":
            print("RuntimeError: no memory for the prompt", file=sys.stderr, flush=True)
            os._exit(3)
        if BEHAVIOUR == "hang-in-prefill" or (BEHAVIOUR == "hang-in-decode" and decodes > 1):
            time.sleep(FOREVER_S)
        with lock:
            running -= 1
        if BEHAVIOUR == "refuse":
            return self.answer(400, b'{"error": {"message": "prompt too long"}}')
        usage = json.dumps({"choices": [], "usage": {"completion_tokens": request["max_tokens"]}}).encode()
        body = b'data: {"choices": [{"text": "a"}]}\n\ndata: ' + usage + b"\n\n"
        if BEHAVIOUR == "error-in-stream":
            body += b'data: {"error": {"message": "engine core died"}}\n\n'
        if BEHAVIOUR == "stop-early":
            body = body.replace(b'"completion_tokens": 32', b'"completion_tokens": 31')
        return self.answer(200, body if BEHAVIOUR == "cut-stream" else body + b"data: [DONE]\n\n")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def note_pid(pid: int) -> None:
    with (NOTES / "pids").open("a") as file:
        file.write(f"{pid}\n")


def start_lost_child(deaf: bool) -> None:
    """A grandchild in a session of its own, without our environment, without a parent, and maybe deaf to SIGTERM."""
    hearing = "SIG_IGN" if deaf else "SIG_DFL"
    child = f"import signal, time; signal.signal(15, signal.{hearing}); print(1, flush=True); time.sleep({FOREVER_S})"
    middle = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]], env={}, "
        "start_new_session=True, stdout=subprocess.PIPE); child.stdout.readline(); print(child.pid, flush=True)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", middle, child], stdout=subprocess.PIPE, check=True)
    note_pid(int(done.stdout))


def main() -> None:
    note_pid(os.getpid())
    (NOTES / "environment.json").write_text(json.dumps(dict(os.environ)))
    if BEHAVIOUR == "die-at-start":
        print("ValueError: no such model\nOSError: giving up", file=sys.stderr, flush=True)
        sys.exit(2)
    if BEHAVIOUR == "never-listen":
        (NOTES / "port").write_text(str(PORT))
        time.sleep(FOREVER_S)
    if BEHAVIOUR == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if BEHAVIOUR in ("lost-child", "lost-deaf-child"):
        start_lost_child(deaf=BEHAVIOUR == "lost-deaf-child")
    print("INFO Model loading took 0.5 GiB memory and 1.0 seconds\nINFO GPU KV cache size: 131,072 tokens", flush=True)
    ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()


main()
