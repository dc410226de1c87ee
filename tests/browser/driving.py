"""What the browser tests do with a page."""

import io
import shutil

from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import expect

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update"]  # fmt: skip
# Gradio's own footer link and its placeholder for an empty image.
NOT_OURS = {"image-redundant-alt", "aria-prohibited-attr"}


def chromium_path() -> str:
    """The system's Chromium or Chrome."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "Chromium is needed: apt-get install chromium"
    return path


def run(page):
    page.locator("#lt-run").click()
    expect(page.locator("#lt-status .done")).to_be_visible(timeout=400_000)


def choose_model(page, label: str):
    page.get_by_label("Model", exact=True).click()
    page.get_by_role("option", name=label).click()


def picture(page, mode: str) -> Image.Image:
    source = page.locator(f"#lt-image-{mode} img").get_attribute("src")
    return Image.open(io.BytesIO(page.request.get(source).body()))


def serious(page) -> list[str]:
    """What axe finds. Examples are buttons that Gradio fills a moment after it shows them."""
    page.wait_for_function(
        "[...document.querySelectorAll('.gallery-item')].every(b => b.textContent.trim())"
    )
    violations = Axe().run(page).response["violations"]
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:120]}"
        for v in violations
        if v["impact"] in ("serious", "critical") and v["id"] not in NOT_OURS
    ]


def fits(page, width: int):
    """Nothing sticks out to the right, once Gradio has folded its row of tabs."""
    page.wait_for_function(
        "width => document.documentElement.scrollWidth <= width", arg=width, timeout=20_000
    )
