"""The app behind nginx under a sub-path, as on a shared server."""

import shutil
import subprocess
import time
import urllib.request

import pytest
from app_process import free_port, serve
from driving import picture, run
from playwright.sync_api import expect
from tiny_models import write_class_model

pytestmark = pytest.mark.browser

CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 128; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /demo/ {{
      proxy_pass {address}/;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_buffering off;
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """Address of the app as nginx shows it."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
    assert nginx, "nginx is needed for this test: apt-get install nginx-light"
    models, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("nginx")
    write_class_model(models, "llamagen-b-256", drafter=True)
    environment = {"LANTERN_MODEL": "llamagen-b-256", "LANTERN_MODELS": str(models)}
    with serve(GRADIO_ROOT_PATH="/demo", **environment) as (address, _):
        port = free_port()
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, port=port, address=address))
        server = subprocess.Popen([nginx, "-c", str(config), "-p", str(folder)])
        outside = f"http://127.0.0.1:{port}/demo/"
        try:
            for _ in range(100):
                try:
                    urllib.request.urlopen(outside, timeout=120)
                    break
                except OSError:
                    time.sleep(0.1)
            yield outside
        finally:
            server.terminate()
            server.wait(10)


def test_a_run_through_the_proxy(browser, proxied):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(proxied)
    expect(page.locator("#lt-status")).to_contain_text("Ready")
    run(page)
    assert picture(page, "lantern").size == (256, 256)
    foreign = [url for url in asked if not url.startswith((proxied, "data:", "blob:"))]
    assert not foreign, foreign
    page.close()
