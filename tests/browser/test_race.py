"""The race: replayed in the browser alone, by mouse and by keyboard, saved for slides."""

import re

import pytest
from driving import fits, serious
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def tokens(page) -> list[int]:
    return [int(c.get_attribute("data-tokens")) for c in page.locator("#lt-race canvas").all()]


def test_the_page_opens_on_a_recording_and_replays_it(page):
    race = page.locator("#lt-race")
    expect(page.locator("#lt-status")).to_contain_text("Recorded on")
    expect(race.locator(".note")).to_contain_text("A recording, made on")
    for mode in ("ar", "eagle2", "lantern"):
        expect(page.locator(f"#lt-image-{mode} img")).to_be_visible()
    expect(race.locator("canvas")).to_have_count(3)
    assert tokens(page) == [256] * 3
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    race.locator(".scrub").fill("0")
    assert tokens(page) == [0] * 3
    race.locator(".play").click()
    expect(race.locator(".play")).to_contain_text("Pause")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#lt-race canvas')].every((c) => c.dataset.tokens > 9)"
    )
    race.locator(".play").click()
    expect(race.locator(".figures").first).to_contain_text(re.compile(r"\d+ passes · \d+ tokens"))
    assert all(0 < count < 256 for count in tokens(page))
    assert not asked, "a replay needs no server"


def test_one_pass_at_a_time_by_keyboard(page):
    race = page.locator("#lt-race")
    race.get_by_label("Speed of the replay").select_option("pass")
    race.locator(".track").focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    ar, eagle, lantern = tokens(page)
    assert ar == 3 <= eagle <= lantern
    expect(race.locator(".clock")).to_have_text("pass 3")
    page.keyboard.press("ArrowLeft")
    assert tokens(page)[0] == 2
    page.keyboard.press("Space")
    expect(race.locator(".play")).to_contain_text("Pause")
    page.keyboard.press("Space")
    page.keyboard.press("End")
    assert tokens(page) == [256] * 3
    assert not serious(page)


@pytest.mark.parametrize("name", ["webp", "gif"])
def test_saving_for_slides(page, name):
    with page.expect_download() as download:
        page.locator(f"#lt-race [data-format={name}]").click()
    assert download.value.suggested_filename == f"lantern-race.{name}"
    with Image.open(download.value.path()) as image:
        assert image.format == name.upper() and image.n_frames > 30 and image.width == 1280


def test_other_recordings_and_less_motion(browser, address):
    page = browser.new_page(viewport={"width": 390, "height": 844}, reduced_motion="reduce")
    page.goto(address)
    race = page.locator("#lt-race")
    expect(race.locator("canvas")).to_have_count(3)
    page.get_by_label("Recorded runs").click()
    page.locator("#lt-recordings").get_by_role("option").last.click()
    expect(race.locator("canvas")).to_have_count(5)
    expect(page.get_by_label("Add coupled drafting")).to_be_checked()
    race.locator(".scrub").fill("0")
    race.locator(".play").click()
    page.wait_for_timeout(600)
    assert tokens(page) == [0] * 5  # nothing moves within the first second
    fits(page, 390)
    page.close()


def test_opening_the_page_is_light(browser, address):
    """Everything but Gradio's own files: under 3 MB."""
    context = browser.new_context()
    page = context.new_page()
    sizes = {}
    page.on("response", lambda r: sizes.__setitem__(r.url, r) if "/assets/" not in r.url else None)
    page.goto(address)
    expect(page.locator("#lt-race canvas")).to_have_count(3)
    own = 0
    for url, response in list(sizes.items()):
        if "/static/" in url or "/queue/" in url or "heartbeat" in url:
            continue
        own += len(response.body())
    print(f"page without Gradio's files: {own / 2**20:.2f} MiB in {len(sizes)} answers")
    assert own < 3 * 2**20
    context.close()
