"""On a stage: keys without a mouse, and the page without what an audience does not need."""

import pytest
from driving import fits, serious
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_keys_run_stop_play_and_step(page):
    race = page.locator("#lt-race")
    expect(race.locator("canvas")).to_have_count(3)
    shown = "() => [...document.querySelectorAll('#lt-race canvas')].map((c) => +c.dataset.tokens)"
    page.wait_for_function("document.documentElement.dataset.lanternKeys")
    # At its own speed a race may be over before a busy machine looks at the button again.
    race.get_by_label("Speed of the replay").select_option("pass")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Space")
    expect(race.locator(".play")).to_contain_text("Pause")
    page.keyboard.press("Space")
    expect(race.locator(".play")).not_to_contain_text("Pause")
    before = sum(page.evaluate(shown))
    page.keyboard.press("ArrowRight")
    after = sum(page.evaluate(shown))
    assert after > before
    page.keyboard.press("ArrowLeft")
    assert before <= sum(page.evaluate(shown)) < after
    page.keyboard.press("Enter")
    expect(page.locator("#lt-status .busy")).to_be_visible()
    expect(page.locator("#lt-stop")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.locator("#lt-status .stopped")).to_be_visible()


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
    fits(page, 1440)
    assert not serious(page)


def test_the_tour_says_what_a_relaxed_token_is(page):
    page.get_by_role("button", name="New here?").click()
    box = page.get_by_role("dialog")
    expect(box).to_contain_text("Step 1 of 3")
    assert not serious(page)
    page.keyboard.press("ArrowRight")
    expect(box).to_contain_text("the drafter's guess was not what the model drew there")
    expect(page.locator("#lt-map")).to_be_in_viewport()
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)
    expect(box).to_be_in_viewport(ratio=0.99)
    box.get_by_role("button", name="Next").click()
    expect(box).to_contain_text("delta is how much probability")
    box.get_by_role("button", name="Done").click()
    expect(box).to_be_hidden()
    assert page.evaluate("document.activeElement.className") == "start"
