"""A visit to the app on the very model that ships, from the first run to the last tab.

The other browser tests draw with a light form of it (tiny_models.write_light); what they check of
each tab in detail this one checks in short.
"""

import json
import re
import zipfile

import pytest
from app_process import serve
from driving import picture, run
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

LANES = ("ar", "eagle2", "lantern")


def test_a_visit(browser):
    with serve() as (address, _):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        foreign = []
        page.on("request", lambda request: foreign.append(request.url))
        page.goto(address)
        expect(page.locator("#lt-race .note")).to_contain_text("A recording, made on")
        expect(page.locator("#lt-status")).to_contain_text("Ready")
        run(page)
        _compare(page)
        _look(page)
        _ambiguity(page)
        _codebook(page)
        _share(page)
        _sweep(page)
        _stop_and_bad_input(page)
        assert not [u for u in foreign if not u.startswith((address, "data:", "blob:"))]
        page.close()


def _compare(page):
    ar, eagle, lantern = (picture(page, mode) for mode in LANES)
    assert ar.size == eagle.size == lantern.size == (128, 128)
    assert ar.tobytes() == eagle.tobytes() != lantern.tobytes()
    assert page.locator("#lt-histogram svg").get_attribute("aria-label")
    relaxed = int(page.locator("#lt-map canvas").get_attribute("data-relaxed"))
    assert relaxed > 0
    expect(page.locator("#lt-sentence")).to_contain_text(f"stand in for {relaxed} of 256 tokens")
    drawn = "() => [...document.querySelectorAll('#lt-race canvas')].map((c) => +c.dataset.tokens)"
    assert page.evaluate(drawn) == [256] * 3


def _look(page):
    kinds = page.evaluate("window.lanternRun.lanes.find((l) => l.mode === 'lantern').tokens.kind")
    token = kinds.index("r")
    side = page.locator("#lt-map canvas").bounding_box()["width"] / 16
    place = {"x": (token % 16 + 0.5) * side, "y": (token // 16 + 0.5) * side}
    page.locator("#lt-map canvas").click(position=place)
    look = page.locator("#lt-look")
    expect(look.locator(".token .title")).to_have_text(f"Token {token}")
    expect(look.locator(".strict")).to_contain_text("Strict EAGLE-2 would have refused it")
    expect(look.locator(".row .drew")).to_have_count(1)


def _ambiguity(page):
    page.get_by_role("tab", name="Ambiguity").click()
    page.locator("#lt-ambiguity-run").click()
    expect(page.locator("#lt-ambiguity svg")).to_have_count(2)
    accuracy = page.locator("#lt-ambiguity table").last
    expect(accuracy).to_contain_text(re.compile(r"EAGLE-2.*[1-9]\d / \d+ %"))  # it has learned


def _codebook(page):
    page.get_by_role("tab", name="Codebook").click()
    page.locator("#lt-replace").click()
    expect(page.locator("#lt-replaced")).to_contain_text("128 of 256 tokens")


def _share(page):
    page.get_by_role("tab", name="Compare").click()
    with page.expect_download() as download:
        page.locator("#lt-share .zip").click()
    with zipfile.ZipFile(download.value.path()) as file:
        assert json.loads(file.read("parameters.json"))["model"] == "emoji-128"


def _sweep(page):
    page.get_by_role("tab", name="Sweep").click()
    page.get_by_label("k", exact=True).fill("1000")
    page.get_by_label("delta", exact=True).fill("0.3")
    page.get_by_role("button", name="Sweep", exact=True).click()
    expect(page.locator("#lt-sweep-status .done")).to_be_visible(timeout=400_000)
    expect(page.locator("#lt-sweep td button")).to_have_count(1)


def _stop_and_bad_input(page):
    page.get_by_role("tab", name="Compare").click()
    page.locator("#lt-run").click()
    expect(page.locator("#lt-status")).to_contain_text("is drawing")
    page.locator("#lt-stop").click()
    expect(page.locator("#lt-status .stopped")).to_contain_text("of 256")
    page.get_by_label("Prompt").fill("")
    page.locator("#lt-run").click()
    expect(page.get_by_text("Write what to draw").first).to_be_visible()
