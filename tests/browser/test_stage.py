"""On a stage: keys without a mouse, and the page without what an audience does not need."""

import pytest
from driving import serious
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_keys_run_stop_play_and_step(page):
    race = page.locator("#lt-race")
    expect(race.locator("canvas")).to_have_count(3)
    shown = "() => [...document.querySelectorAll('#lt-race canvas')].map((c) => +c.dataset.tokens)"
    page.keyboard.press("Space")
    expect(race.locator(".play")).to_contain_text("Pause")
    page.keyboard.press("Space")
    expect(race.locator(".play")).not_to_contain_text("Pause")
    before = sum(page.evaluate(shown))
    page.keyboard.press("ArrowRight")
    assert sum(page.evaluate(shown)) > before
    page.keyboard.press("ArrowLeft")
    assert sum(page.evaluate(shown)) <= before
    page.keyboard.press("Enter")
    expect(page.locator("#lt-status .busy")).to_be_visible(timeout=30_000)
    expect(page.locator("#lt-stop")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.locator("#lt-status .stopped")).to_be_visible(timeout=60_000)


def test_keys_stay_with_the_field_that_has_the_focus(page):
    prompt = page.get_by_label("Prompt", exact=True)
    prompt.fill("a cat")
    prompt.press("End")
    page.keyboard.press("Space")
    page.keyboard.type("at night")
    expect(prompt).to_have_value("a cat at night")
    expect(page.locator("#lt-race .play")).not_to_contain_text("Pause")


def test_present_shows_large_type_and_no_chrome(page, address):
    small = page.locator("#lt-run").bounding_box()["height"]
    expect(page.locator("footer")).to_be_visible()
    page.goto(f"{address}?present=1")
    expect(page.locator("#lt-status")).to_contain_text("Recorded on")
    expect(page.locator("footer")).to_be_hidden()
    expect(page.locator("#lt-share")).to_be_hidden()
    assert page.locator("#lt-run").bounding_box()["height"] > 1.2 * small
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not serious(page)
