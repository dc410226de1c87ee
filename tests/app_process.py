"""The real app in a process of its own, as a visitor meets it."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serve(seconds: float = 300, script: str = "app.py", **environment: str):
    """Start app.py, or a script around it, with additional environment variables and wait until it
    answers: (address, process). Ended, if need be by force, on leaving."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, script],
        cwd=ROOT,
        env=os.environ | {"GRADIO_SERVER_PORT": str(port), "HF_HUB_OFFLINE": "1"} | environment,
        stdout=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + seconds
    try:
        while True:
            assert process.poll() is None, "app.py ended"
            assert time.monotonic() < end, "app.py did not answer"
            try:
                assert urllib.request.urlopen(address, timeout=30).status == 200
                break
            except OSError:
                time.sleep(0.2)
        yield address, process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
