"""The real app on the shipped model, driven in Chromium."""

import json
import re
import urllib.error
import urllib.request

import pytest
from driving import choose_model, fits, picture, run, serious
from playwright.sync_api import expect

from lantern.pipeline import model_info

pytestmark = pytest.mark.browser
INFO = model_info("emoji-128")
EXAMPLES = INFO.examples
CFG = f"{INFO.options().cfg:g}"


def test_a_visitor_presses_run_and_gets_three_images(page):
    run(page)
    images = {mode: picture(page, mode) for mode in ("ar", "eagle2", "lantern")}
    for image in images.values():
        assert image.format == "PNG" and image.size == (128, 128)
    assert images["ar"].tobytes() == images["eagle2"].tobytes() != images["lantern"].tobytes()
    text = page.locator("#lt-sentence").inner_text()
    assert re.search(r"EAGLE-2 drew AR's image token for token in \d+ target passes", text)
    relaxed = int(re.search(r"stand in for (\d+) of 256 tokens", text)[1])
    expect(page.locator("#lt-map canvas")).to_have_attribute("data-relaxed", str(relaxed))
    assert page.locator("#lt-histogram svg").get_attribute("aria-label")
    for mode in ("ar", "eagle2", "lantern"):
        card = page.locator(f"#lt-card-{mode}").inner_text()
        for word in ("decode", "passes", "tokens/pass", "tokens/s", "text", "VQ"):
            assert word in card
    assert "the speed of AR" in page.locator("#lt-card-lantern").inner_text()
    page.locator("#lt-map canvas").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#lt-map .cell")).to_contain_text("Row 1")
    assert not serious(page)


def test_five_lanes_on_one_row(page):
    for mode in ("eagle2-coupled", "lantern-coupled"):
        expect(page.locator(f"#lt-card-{mode}")).to_be_hidden()
    page.get_by_label("Add coupled drafting").check()
    run(page)
    expect(page.locator("#lt-status")).to_contain_text("all five lanes")
    modes = ("ar", "eagle2", "lantern", "eagle2-coupled", "lantern-coupled")
    boxes = [page.locator(f"#lt-image-{mode}").bounding_box() for mode in modes]
    assert len({round(box["y"]) for box in boxes}) == 1 and boxes[-1]["x"] + 180 < 1440
    box = page.locator("#lt-histogram").bounding_box()
    assert box["y"] + 200 < 900  # the figures begin on the first screen
    assert picture(page, "eagle2-coupled").tobytes() == picture(page, "ar").tobytes()
    text = page.locator("#lt-sentence").inner_text()
    assert re.search(r"Coupled, EAGLE-2 took \d+ passes instead of \d+, was", text)
    assert "is still AR's image token for token" in text
    for name in ("EAGLE-2 coupled", "LANTERN coupled"):
        expect(page.locator("#lt-histogram")).to_contain_text(name)
    canvas = page.locator("#lt-map canvas")
    page.get_by_role("radio", name="LANTERN coupled").check()
    expect(canvas).to_have_attribute("aria-label", re.compile("LANTERN coupled's image"))
    expect(page.locator("#lt-map .title")).to_contain_text("LANTERN coupled: how its tokens")
    assert not serious(page)
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)
    boxes = [page.locator(f"#lt-image-{mode}").bounding_box() for mode in modes]
    assert len({round(box["x"]) for box in boxes}) == 1


def test_choices_under_more_change_what_can_be_set(page):
    page.get_by_role("button", name="More").click()
    delta = page.get_by_label("number input for delta (borrowed)")
    nodes = page.get_by_label("number input for tree nodes")
    expect(page.locator("#lt-factor")).to_have_count(0)
    page.get_by_label("rule").click()
    page.get_by_role("option", name="multiplicative").click()
    expect(page.locator("#lt-factor")).to_be_visible()
    expect(delta).to_be_disabled()
    expect(page.locator("#lt-delta")).to_contain_text("not used by the multiplicative rule")
    page.get_by_label("Tune tree to this device").check()
    expect(nodes).to_be_disabled()
    page.get_by_label("Tune tree to this device").uncheck()
    expect(nodes).to_be_enabled()
    page.get_by_role("button", name="Model defaults").click()
    expect(delta).to_be_enabled()
    expect(page.locator("#lt-factor")).to_have_count(0)


def test_an_example_brings_its_seed(page):
    expect(page.get_by_label("Seed")).to_have_value(str(INFO.seeds[0]))
    page.locator("#lt-examples .gallery-item").nth(2).click()
    expect(page.get_by_label("Prompt")).to_have_value(EXAMPLES[2])
    expect(page.get_by_label("Seed")).to_have_value(str(INFO.seeds[2]))


def test_dark_theme_is_readable(browser, address):
    dark = browser.new_page(color_scheme="dark")
    dark.goto(address)
    expect(dark.locator("#lt-status")).to_contain_text("Ready")
    assert "dark" in dark.locator("body").get_attribute("class")
    assert not serious(dark)
    dark.close()


def test_a_closed_tab_ends_its_run(browser, page, address):
    other = browser.new_page()
    other.goto(address)
    expect(other.locator("#lt-status")).to_contain_text("Ready")
    other.locator("#lt-run").click()
    expect(other.locator("#lt-status")).to_contain_text("is drawing")
    other.close()
    page.locator("#lt-run").click()
    expect(page.locator("#lt-status")).to_contain_text("AR is drawing", timeout=10_000)
    page.locator("#lt-stop").click()
    expect(page.locator("#lt-run")).to_be_enabled()


@pytest.mark.parametrize("name, value, words", [
    ("k", "7", "k must be a whole number"), ("k", None, "k must be"),
    ("k", 1.5, "k must be a whole"), ("delta", 2, "delta must be a number from 0 to 1"),
    ("cfg", 21, "cfg must be"), ("seed", -1, "seed must be"),
    ("temperature", 1e-9, "temperature must be 0"), ("prompt", "", "Write what to draw"),
    ("rule", "warp", "Choose a rule"), ("factor", 0.5, "factor must be a number from 1"),
    ("pick", "last", "Choose a pick: first, nearest"), ("growth", 3, "Choose a tree growth"),
    ("coupled", "yes", "coupled must be true or false"), ("auto", None, "auto must be true"),
    ("model", "warp", "Choose a model: emoji-128"),
    ("model", None, "Choose a model"), ("model", "llamagen-l-256", "is not here"),
])  # fmt: skip
def test_bad_api_calls_are_answered_in_words(address, name, value, words):
    values = dict(model="emoji-128", prompt="a cat", seed=7, k=10, delta=0.1, temperature=1, cfg=2,
                  top_k=0, top_p=1, nodes=4, depth=2, branch=2, rule="tvd", factor=2, pick="first",
                  growth="dynamic", coupled=False, auto=False)  # fmt: skip
    values[name] = value
    body = json.dumps({"data": list(values.values())}).encode()
    call = urllib.request.Request(
        f"{address}/gradio_api/call/compare", body, {"Content-Type": "application/json"}
    )
    try:
        event = json.load(urllib.request.urlopen(call, timeout=120))["event_id"]
        answer = urllib.request.urlopen(f"{address}/gradio_api/call/compare/{event}", timeout=120)
        text = answer.read().decode()
    except urllib.error.HTTPError as error:
        text = error.read().decode()
    assert words in text


def test_enter_runs_stop_stops_and_says_where(page):
    page.get_by_label("Prompt").fill("a fox in the snow")
    page.get_by_label("Prompt").press("Enter")
    expect(page.locator("#lt-status")).to_contain_text("is drawing")
    page.locator("#lt-stop").click()
    expect(page.locator("#lt-status .stopped")).to_contain_text(
        re.compile(r"Stopped in (AR|EAGLE-2|LANTERN) at token \d+ of 256")
    )
    expect(page.locator("#lt-run")).to_be_enabled()
    run(page)


def test_everything_that_was_taught_can_be_searched(page):
    things = page.get_by_label("Things it can draw (search)")
    things.click()
    things.press_sequentially("doggy")
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(1)
    things.press("Enter")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("dog on the grass, 3D style")
    page.get_by_label("Prompt", exact=True).fill("a bulldozer at night")
    run(page)
    expect(page.locator("#lt-sentence")).to_contain_text("nothing in this prompt is one of them")


def test_bad_input_is_refused_at_the_control(page):
    page.get_by_label("Prompt").fill("")
    page.locator("#lt-run").click()
    error = page.locator("#lt-prompt div.validation-error")
    expect(error).to_contain_text("Write what to draw")
    page.get_by_label("Prompt").fill("cat " * 80)
    page.locator("#lt-run").click()
    expect(error).to_contain_text("prompt is too long")
    expect(page.locator("#lt-status")).to_contain_text("Ready")


def test_a_class_model_and_back(page):
    choose_model(page, "LlamaGen-B 256 px")
    expect(page.locator("#lt-status")).to_contain_text("Ready")
    expect(page.get_by_label("Prompt")).to_have_count(0)
    picker = page.get_by_label("Class (type to search)")
    expect(picker).to_have_value("golden retriever")
    expect(page.get_by_label("number input for delta (borrowed)")).to_have_value("0.2")
    for mode in ("eagle2", "lantern"):
        expect(page.locator(f"#lt-card-{mode}")).to_contain_text(
            "This model has no drafter yet; train one with python -m lantern train-drafter "
            "--model llamagen-b-256"
        )
    page.get_by_role("button", name="macaw").click()
    expect(picker).to_have_value("macaw")
    run(page)
    macaw = picture(page, "ar")
    picker.click()
    picker.press("Control+A")
    picker.press_sequentially("volc")
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(1)
    picker.press("Enter")
    expect(picker).to_have_value("volcano")
    page.locator("#lt-run").click()  # at once: the choice must have arrived
    expect(page.locator("#lt-status .done")).to_have_count(0)
    expect(page.locator("#lt-status .done")).to_contain_text("AR alone")
    volcano = picture(page, "ar")
    assert macaw.size == volcano.size == (256, 256) and macaw.tobytes() != volcano.tobytes()
    assert page.locator("#lt-image-lantern img").count() == 0
    expect(page.locator("#lt-histogram")).to_contain_text("appear here after a run")
    assert not serious(page)

    choose_model(page, "emoji-128")
    expect(page.locator("#lt-image-ar img")).to_have_count(0)
    expect(page.get_by_label("Prompt")).to_have_value(EXAMPLES[0])
    expect(page.get_by_label("number input for delta (borrowed)")).to_have_value("0.4")
    page.get_by_role("button", name=EXAMPLES[2]).click()
    expect(page.get_by_label("Prompt")).to_have_value(EXAMPLES[2])
    page.get_by_label("number input for delta (borrowed)").fill("0.1")
    page.get_by_role("button", name="Model defaults").click()
    expect(page.get_by_label("number input for delta (borrowed)")).to_have_value("0.4")
    run(page)  # also while it is still loading
    assert picture(page, "lantern").size == (128, 128)


def test_an_absent_model_says_how_to_get_it_and_cannot_run(page):
    page.get_by_label("Prompt").fill("a fox")
    choose_model(page, "LlamaGen Stage I (not downloaded)")
    words = "get it with python -m lantern download llamagen-stage1"
    expect(page.locator("#lt-model-note")).to_contain_text(words)
    page.locator("#lt-run").click()
    error = page.locator("#lt-model div.validation-error")
    expect(error).to_contain_text(words)
    expect(page.locator("#lt-model-note")).to_be_hidden()  # one sentence is enough
    expect(page.get_by_label("Prompt")).to_have_value("a fox")
    expect(page.get_by_label("number input for CFG (guidance)")).to_have_value(CFG)
    expect(page.locator("#lt-status")).to_contain_text("Ready")
    choose_model(page, "emoji-128")
    expect(error).to_have_count(0)
    expect(page.locator("#lt-model-note")).to_have_count(0)
    run(page)


def test_markup_in_a_prompt_stays_text(page):
    page.get_by_label("Prompt").fill("${document.title} <img src=x onerror=alert(1)>")
    page.locator("#lt-run").click()
    expect(page.locator("#lt-run")).to_be_disabled()
    page.locator("#lt-stop").click()
    expect(page.locator("#lt-run")).to_be_enabled()
    assert page.locator("img[src='x']").count() == 0


def test_two_visitors_are_served_in_turn(browser, page, address):
    other = browser.new_page()
    other.goto(address)
    expect(other.locator("#lt-status")).to_contain_text("Ready")
    page.locator("#lt-run").click()
    expect(page.locator("#lt-status")).to_contain_text("is drawing")
    other.locator("#lt-run").click()
    expect(other.locator("#lt-status")).to_contain_text("1 run is ahead of yours")
    for visitor in (page, other):
        expect(visitor.locator("#lt-status .done")).to_be_visible()
    for mode in ("ar", "eagle2", "lantern"):
        assert picture(page, mode).tobytes() == picture(other, mode).tobytes()
    other.close()


def test_a_phone_shows_everything_without_sideways_scrolling(page):
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)
    expect(page.locator("#lt-run")).to_be_in_viewport()
