"""The container: what it copies is there and enough, and its health check tells up from down."""

import json
import os
import re
import shutil
import subprocess
import sys

from app_process import ROOT, free_port, serve
from tiny_models import write_class_model

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def copied() -> list[str]:
    lines = re.findall(r"^COPY (?:--\S+ )*(.+)$", DOCKERFILE, re.M)
    return [name for line in lines for name in line.split()[:-1]]


def test_what_is_copied_is_enough(tmp_path):
    """The copied files alone import and list their models."""
    for name in copied():
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "neighbours-*")
            shutil.copytree(source, tmp_path / name, ignore=ignored)
        else:
            shutil.copyfile(source, tmp_path / name)
    code = "import app.ui, app.studio, lantern.__main__ as m; m.main(['models'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert re.search(r"emoji-128: .*\n  present", done.stdout)


def health_check() -> list[str]:
    command = json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.*?\])\n", DOCKERFILE, re.S)[1])
    return [sys.executable, *command[1:]]


def test_health_check(tmp_path):
    write_class_model(tmp_path, "llamagen-b-256")
    environment = {"LANTERN_MODEL": "llamagen-b-256", "LANTERN_MODELS": str(tmp_path)}
    with serve(**environment) as (address, _):
        port = address.rpartition(":")[2]
        up = subprocess.run(health_check(), env=os.environ | {"GRADIO_SERVER_PORT": port})
    assert up.returncode == 0
    down = os.environ | {"GRADIO_SERVER_PORT": str(free_port())}
    assert subprocess.run(health_check(), env=down, stderr=subprocess.DEVNULL).returncode != 0


def test_it_does_not_run_as_root():
    assert re.search(r"^USER (?!root)", DOCKERFILE, re.M)
    assert DOCKERFILE.index("\nUSER ") < DOCKERFILE.index("\nCMD ")
