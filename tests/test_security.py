"""What a stranger can ask of a running app: files, uploads, other sites, the network."""

import io
import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import httpx
import pytest
from app_process import ROOT, serve
from soak import SMALL, cases
from tiny_models import write_class_model
from visitors import Visitor, run_to_the_end

TINY = "llamagen-b-256"
# Notes every connection and name that is not this machine's.
SPY = """
import os, socket
_file = os.environ["SPY_FILE"]
def _note(what):
    with open(_file, "a") as out: out.write(f"{what}\\n")
_connect, _resolve = socket.socket.connect, socket.getaddrinfo
def connect(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        _note(address)
    return _connect(self, address)
def resolve(host, *rest, **more):
    if host not in (None, "", "127.0.0.1", "localhost", "0.0.0.0", "::1", b"localhost"):
        _note(host)
    return _resolve(host, *rest, **more)
socket.socket.connect, socket.getaddrinfo = connect, resolve
"""


@pytest.fixture(scope="module")
def spied(tmp_path_factory):
    """(address, file with whatever left the machine)."""
    root = tmp_path_factory.mktemp("models")
    write_class_model(root, TINY, drafter=True)
    spy = tmp_path_factory.mktemp("spy")
    (spy / "sitecustomize.py").write_text(SPY)
    environment = {
        "LANTERN_MODEL": TINY, "LANTERN_MODELS": str(root), "PYTHONPATH": str(spy),
        "SPY_FILE": str(spy / "seen"), "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    with serve(**environment) as (address, _):
        yield address, spy / "seen"


@pytest.fixture
def address(spied) -> str:
    return spied[0]


def raw(address: str, path: str) -> tuple[int, bytes]:
    """A request whose path is sent as it is, dots and all."""
    import http.client

    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
    connection.putrequest("GET", path, skip_host=False)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


SECRETS = [
    "/etc/passwd", str(ROOT / "app.py"), str(ROOT / "README.md"), "app.py", "README.md",
    ".git/config", str(ROOT / ".git" / "config"),
    str(ROOT / "checkpoints/emoji-128/target/model.safetensors"),
    "/proc/self/environ", str(Path.home() / ".bashrc"),
]  # fmt: skip
ROUTES = [
    "/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/", "/svelte/",
    "/gradio_api/stream/", "/gradio_api/proxy=", "/theme.css/", "/gradio_api/custom_component/",
]  # fmt: skip
DISGUISES = [
    lambda path: path,
    lambda path: "../" * 12 + path.lstrip("/"),
    lambda path: urllib.parse.quote("../" * 12 + path.lstrip("/"), safe=""),
    lambda path: "..%2f" * 12 + path.lstrip("/"),
    lambda path: "%252e%252e%252f" * 12 + path.lstrip("/"),
    lambda path: "....//" * 12 + path.lstrip("/"),
    lambda path: path + "%00.png",
    lambda path: "file://" + path,
]


@pytest.mark.parametrize("route", ROUTES)
def test_no_file_but_the_public_ones_is_handed_out(address, route):
    for secret in SECRETS:
        for disguise in DISGUISES:
            status, body = raw(address, route + disguise(secret).replace(" ", "%20"))
            page = status == 200 and b"gradio_config" in body  # the app's own page for odd paths
            assert status >= 400 or page, (route, secret)
            assert b"root:" not in body and b"[core]" not in body and b"set_threads" not in body


def test_a_finished_runs_picture_is_public_and_nothing_beside_it(address):
    visitor = Visitor(address)
    visitor.join(cases(TINY, ["macaw"], **SMALL)[0])
    for message in visitor.messages():
        if message["msg"] == "process_completed":
            data = message["output"]["data"]
            break
    value = data[visitor.places["ar"]]
    path = value.get("value", value)["path"]
    assert visitor.http.get("/file=" + path).status_code == 200
    for other in (str(Path(path).parent), str(Path(path).parent.parent), path + ".bak"):
        assert visitor.http.get("/file=" + other).status_code >= 400


def test_uploads_are_limited(address):
    big = {"files": ("big.png", io.BytesIO(b"\x89PNG" + bytes(6_000_000)), "image/png")}
    answer = httpx.post(f"{address}/gradio_api/upload", files=big, timeout=120)
    assert answer.status_code >= 400
    page = {"files": ("page.html", io.BytesIO(b"<script>alert(1)</script>"), "text/html")}
    answer = httpx.post(f"{address}/gradio_api/upload", files=page, timeout=120)
    if answer.status_code == 200:  # kept, but never shown as a page of this site
        served = httpx.get(f"{address}/gradio_api/file={answer.json()[0]}", timeout=120)
        assert served.status_code >= 400 or "attachment" in served.headers["content-disposition"]


def test_other_sites_get_nothing(address):
    foreign = {"Origin": "https://evil.example", "Cookie": "a=b"}
    for path in ("/config", "/gradio_api/info", "/"):
        answer = httpx.get(address + path, headers=foreign, timeout=120)
        assert answer.headers.get("access-control-allow-origin") is None, path
    answer = httpx.options(
        f"{address}/gradio_api/queue/join",
        headers=foreign | {"Access-Control-Request-Method": "POST"}, timeout=120,
    )  # fmt: skip
    assert answer.headers.get("access-control-allow-origin") is None


def test_nobody_watches_visitors(address):
    config = httpx.get(f"{address}/config", timeout=120).json()
    assert config["analytics_enabled"] is False
    assert httpx.get(f"{address}/gradio_api/monitoring", timeout=120).status_code >= 400
    assert httpx.get(f"{address}/monitoring/summary", timeout=120).status_code >= 400


def test_no_request_leaves_the_machine(spied):
    address, seen = spied
    urllib.request.urlopen(address, timeout=120).read()
    run_to_the_end(Visitor(address), cases(TINY, ["macaw"], **SMALL)[0])
    assert not seen.exists() or not seen.read_text(), seen.read_text()


def test_the_spy_sees(tmp_path):
    """The test above can fail: a process that asks for a name is noticed."""
    import os
    import sys

    (tmp_path / "sitecustomize.py").write_text(SPY)
    code = (
        "import socket\ntry: socket.create_connection(('gradio.example', 80), 1)\nexcept OSError: 0"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "SPY_FILE": str(tmp_path / "seen")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert "gradio.example" in (tmp_path / "seen").read_text()


def test_the_repository_holds_no_secret():
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    pattern = re.compile(
        rb"hf_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY"
        rb"|gh[pousr]_[A-Za-z0-9]{30,}"
    )
    for name in files.stdout.decode().split("\0"):
        file = ROOT / name
        if name and file.is_file() and file.stat().st_size < 2_000_000:
            assert not pattern.search(file.read_bytes()), name


def test_no_folder_is_opened_to_visitors():
    from app.ui import launch_options

    options = launch_options()
    assert not options.get("allowed_paths") and options["max_file_size"] == "5mb"
    assert options["enable_monitoring"] is False and not options.get("share")
    assert options.get("strict_cors", True) is True
    json.dumps({k: str(v) for k, v in options.items()})
