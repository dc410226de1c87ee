"""Visits to the app on the very model that ships, from the first look to the last tab.

The other browser tests draw with a light form of it (tiny_models.write_light); what they check of
each part in detail these check in short.
"""

import json
import re
import zipfile

import pytest
from app_process import serve
from driving import picture, run, serious
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

LANES = ("ar", "eagle2", "lantern")
# The controls' numbers lie beside their sliders.
DELTA = "number input for delta (borrowed)"


@pytest.fixture(scope="module")
def shipped(browser):
    with serve() as (address, _):
        yield address


@pytest.fixture
def open_page(browser, shipped):
    """Opens the page, with a query, in a browser of its own; fails on script errors and on
    requests that leave the machine."""
    contexts, errors, asked = [], [], []

    def opened(query: str = "", ready: str = "Ready", **settings):
        contexts.append(
            browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | settings)
        )
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(shipped + query)
        expect(page.locator("#lt-status")).to_contain_text(ready)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors
    assert not [url for url in asked if not url.startswith((shipped, "data:", "blob:"))]


def test_a_visit_from_the_first_run_to_the_last_tab(open_page):
    page = open_page()
    expect(page.locator("#lt-race .note")).to_contain_text("A recording, made on")
    expect(page.locator("#lt-share summary")).to_contain_text("(0)")
    page.get_by_label("Seed").fill("23")
    page.get_by_label(DELTA).fill("0.35")
    run(page)
    _compare(page)
    _look(page)
    _race(page)
    _share(page)
    _ambiguity(page)
    _codebook(page)
    _sweep(page)
    _stop_and_bad_input(page)


def _compare(page):
    ar, eagle, lantern = (picture(page, mode) for mode in LANES)
    assert ar.size == eagle.size == lantern.size == (128, 128)
    assert ar.tobytes() == eagle.tobytes() != lantern.tobytes()
    assert page.locator("#lt-histogram svg").get_attribute("aria-label")
    relaxed = int(page.locator("#lt-map canvas").get_attribute("data-relaxed"))
    assert relaxed > 0
    expect(page.locator("#lt-sentence")).to_contain_text(f"stand in for {relaxed} of 256 tokens")
    assert _drawn(page) == [256] * 3


def _drawn(page) -> list[int]:
    """How many tokens each lane of the race shows."""
    return page.evaluate(
        "() => [...document.querySelectorAll('#lt-race canvas')].map((c) => +c.dataset.tokens)"
    )


def _look(page):
    kinds = page.evaluate("window.lanternRun.lanes.find((l) => l.mode === 'lantern').tokens.kind")
    token = kinds.index("r")
    canvas, look = page.locator("#lt-map canvas"), page.locator("#lt-look")
    side = canvas.bounding_box()["width"] / 16
    place = {"x": (token % 16 + 0.5) * side, "y": (token // 16 + 0.5) * side}
    canvas.hover(position=place)
    expect(page.locator("#lt-map .cell")).to_contain_text("The target drew")
    canvas.click(position=place)
    expect(look.locator(".token .title")).to_have_text(f"Token {token}")
    expect(look.locator(".strict")).to_contain_text("Strict EAGLE-2 would have refused it")
    expect(look.locator(".row .drew")).to_have_count(1)
    expect(look.locator(".pair figure")).to_have_count(2)
    expect(look.locator("svg g")).to_have_count(3)  # the root and two drafts
    title = look.locator(".pass .title")
    before = title.inner_text()
    look.locator(".tree").focus()
    page.keyboard.press("ArrowRight")
    expect(title).not_to_have_text(before)
    page.get_by_label("Layer").select_option("entropy")
    expect(page.locator("#lt-map .range")).to_contain_text(re.compile(r"from [\d.]+ to [\d.]+"))


def _race(page):
    race = page.locator("#lt-race")
    race.get_by_label("Speed of the replay").select_option("pass")
    race.locator(".track").focus()
    page.keyboard.press("Home")
    assert _drawn(page) == [0] * 3
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    ar, eagle, lantern = _drawn(page)
    assert ar == 2 <= min(eagle, lantern) and max(eagle, lantern) <= 6
    race.get_by_label("Speed of the replay").select_option("quarter")
    race.locator(".scrub").fill("0")
    race.locator(".play").click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('#lt-race canvas')].every((c) => c.dataset.tokens > 9)"
    )
    page.keyboard.press("End")
    with page.expect_download() as download:
        race.locator("[data-format=webp]").click()
    with Image.open(download.value.path()) as animation:
        assert animation.n_frames > 30 and animation.width == 1280


def _share(page):
    share = page.locator("#lt-share")
    with page.expect_download() as download:
        share.locator(".zip").click()
    with zipfile.ZipFile(download.value.path()) as file:
        assert json.loads(file.read("parameters.json"))["model"] == "emoji-128"
    source = page.locator("#lt-image-lantern img").get_attribute("src")
    saved = page.request.get(source).body()
    expect(share.locator("summary")).to_contain_text("(1)")
    page.get_by_label("Seed").fill("5")
    page.get_by_label(DELTA).fill("0.1")
    share.locator("input[type=file]").set_input_files(
        {"name": "lantern.png", "mimeType": "image/png", "buffer": saved}
    )
    expect(page.get_by_label("Seed")).to_have_value("23")
    expect(page.get_by_label(DELTA)).to_have_value("0.35")
    share.locator("summary").click()
    share.locator(".clear").click()
    expect(share.locator("summary")).to_contain_text("(0)")


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
    page.get_by_label("Code", exact=True).fill("12")
    page.locator("#lt-code-show").click()
    tiles = page.locator("#lt-neighbours .lt-tiles figure")
    expect(tiles).to_have_count(25)
    expect(tiles.first).to_contain_text("12")


def _sweep(page):
    grid = page.locator("#lt-sweep")
    page.get_by_role("tab", name="Sweep").click()
    page.get_by_label("k", exact=True).fill("1000")
    page.get_by_label("delta", exact=True).fill("0.3")
    page.get_by_role("button", name="Sweep", exact=True).click()
    expect(page.locator("#lt-sweep-status .done")).to_be_visible(timeout=400_000)
    expect(grid.locator("td button")).to_have_count(1)
    with page.expect_download() as download:
        grid.locator("[data-format=csv]").click()
    assert download.value.suggested_filename == "lantern-sweep.csv"
    grid.locator("td button").click()
    expect(page.locator("#lt-run")).to_be_visible()
    expect(page.get_by_label(DELTA)).to_have_value("0.3")


def _stop_and_bad_input(page):
    page.locator("#lt-run").click()
    expect(page.locator("#lt-status")).to_contain_text("is drawing")
    page.locator("#lt-stop").click()
    expect(page.locator("#lt-status .stopped")).to_contain_text("of 256")
    page.get_by_label("Prompt").fill("")
    page.locator("#lt-run").click()
    expect(page.get_by_text("Write what to draw").first).to_be_visible()


def test_a_link_opens_on_a_stage_and_keys_run_and_stop(open_page):
    page = open_page("/?present=1&p=penguin+at+night&s=31&k=5000&delta=0.15", color_scheme="dark")
    expect(page.locator("footer")).to_be_hidden()
    expect(page.get_by_label("Prompt")).to_have_value("penguin at night")
    expect(page.get_by_label("Seed")).to_have_value("31")
    expect(page.get_by_label(DELTA)).to_have_value("0.15")
    expect(page.get_by_label("number input for k (neighbours)")).to_have_value("1000")
    assert "dark" in page.locator("body").get_attribute("class")
    assert not serious(page)
    page.wait_for_function("document.documentElement.dataset.lanternKeys")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Enter")
    expect(page.locator("#lt-stop")).to_be_enabled()
    expect(page.locator("#lt-status")).to_contain_text("is drawing")
    page.keyboard.press("Escape")
    expect(page.locator("#lt-status .stopped")).to_contain_text("of 256")


def test_a_guided_tour_and_a_run_in_chinese(open_page):
    page = open_page(ready="就绪", locale="zh-TW")
    page.get_by_role("button", name="第一次来").click()
    box = page.get_by_role("dialog")
    for words, button in (("三遍", "下一步"), ("替身", "下一步"), ("近邻个数", "完成")):
        expect(box).to_contain_text(words)
        box.get_by_role("button", name=button).click()
    expect(box).to_be_hidden()
    run(page)
    expect(page.locator("#lt-sentence")).to_contain_text("EAGLE-2 用")
    expect(page.locator("#lt-histogram svg")).to_have_attribute("aria-label", "接受长度的直方图")
    assert not serious(page)
