"""The page where the model cannot be loaded: recordings, and a sentence that says why."""

import os
import re

import pytest
from app_process import serve
from driving import picture
from playwright.sync_api import expect
from tiny_models import write_native

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    models = tmp_path_factory.mktemp("broken")
    weights = write_native(models) / "target" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    with serve(LANTERN_MODELS=str(models)) as (address, _):
        yield address


def test_recordings_are_shown_and_the_reason_is_said(browser, address):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    status = page.locator("#lt-status")
    expect(status).to_contain_text("emoji-128 could not be loaded")
    expect(status).to_contain_text("model.safetensors")
    expect(status).to_contain_text("recorded runs")
    for mode in ("ar", "eagle2", "lantern"):
        assert picture(page, mode).size == (128, 128)
    expect(page.locator("#lt-map canvas")).to_have_attribute("data-relaxed", re.compile(r"[1-9]"))
    # Another recording, and its race, need no model either.
    first = picture(page, "ar").tobytes()
    page.get_by_label("Recorded runs").click()
    page.get_by_role("option").nth(1).click()
    expect(status).to_contain_text("Recorded on")
    page.wait_for_timeout(500)
    assert picture(page, "ar").tobytes() != first
    # The inspector says why it cannot answer; Run tries again and says why it cannot draw.
    page.locator("#lt-map canvas").click(position={"x": 100, "y": 100})
    expect(page.locator("#lt-look")).to_contain_text("could not be loaded")
    page.locator("#lt-run").click()
    expect(status.locator(".bad")).to_contain_text("could not be loaded")
    expect(page.locator("#lt-run")).to_be_enabled()
    page.close()
