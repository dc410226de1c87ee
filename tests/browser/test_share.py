"""Links, downloads, restoring and the log of runs, in the browser."""

import io
import json
import zipfile

import pytest
from driving import picture, run
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def value(page, label: str) -> str:
    return page.get_by_label(f"number input for {label}").input_value()


def test_a_link_sets_the_controls_and_clamps_them(page, address):
    page.goto(f"{address}/?p=penguin+at+night&s=31&k=5000&delta=0.15&coupled=true&cfg=abc")
    expect(page.get_by_label("Prompt")).to_have_value("penguin at night")
    expect(page.get_by_label("Seed")).to_have_value("31")
    assert value(page, "k (neighbours)") == "1000" and value(page, "delta (borrowed)") == "0.15"
    expect(page.get_by_label("Add coupled drafting")).to_be_checked()


def test_a_link_to_another_model(page, address):
    page.goto(f"{address}/?model=llamagen-b-256&p=volcano&s=5&delta=0.35")
    expect(page.locator("#lt-class input")).to_have_value("volcano")
    expect(page.get_by_label("Seed")).to_have_value("5")
    assert value(page, "delta (borrowed)") == "0.35"


def test_a_run_is_shared_saved_logged_and_restored(page, address):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    share = page.locator("#lt-share")
    expect(share.locator("summary")).to_contain_text("(0)")  # recordings are nobody's runs
    page.get_by_label("Seed").fill("23")
    page.get_by_label("number input for delta (borrowed)").fill("0.25")
    run(page)
    share.locator(".link").click()
    expect(share.locator(".said")).to_contain_text("Link copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(address) and "s=23" in link and "delta=0.25" in link
    with page.expect_download() as download:
        share.locator(".zip").click()
    with zipfile.ZipFile(download.value.path()) as file:
        assert json.loads(file.read("parameters.json"))["seed"] == 23
    image = picture(page, "lantern")
    assert json.loads(image.text["lantern"])["delta"] == 0.25
    expect(share.locator("summary")).to_contain_text("(1)")
    source = page.locator("#lt-image-lantern img").get_attribute("src")
    saved = page.request.get(source).body()

    page.goto(address)
    expect(page.get_by_label("Seed")).not_to_have_value("23")
    share.locator("input[type=file]").set_input_files(
        {"name": "lantern.png", "mimeType": "image/png", "buffer": saved}
    )
    expect(page.get_by_label("Seed")).to_have_value("23")
    assert value(page, "delta (borrowed)") == "0.25"

    page.goto(address)
    share.locator("summary").click()
    share.locator("li button").click()
    expect(page.get_by_label("Seed")).to_have_value("23")
    share.locator("summary").click()
    share.locator(".clear").click()
    expect(share.locator("summary")).to_contain_text("(0)")


def with_settings(text: str) -> bytes:
    """A PNG whose chunk of settings says ``text``."""
    out, chunks = io.BytesIO(), PngInfo()
    chunks.add_text("lantern", text)
    Image.new("RGB", (9, 9)).save(out, format="PNG", pnginfo=chunks)
    return out.getvalue()


def test_pictures_without_settings_are_answered(page):
    share = page.locator("#lt-share")
    plain = io.BytesIO()
    Image.new("RGB", (9, 9)).save(plain, format="PNG")
    for content, words in [
        (plain.getvalue(), "holds no settings"),
        (b"GIF89a" + bytes(40), "not a PNG"),
        (plain.getvalue()[:30], "holds no settings"),
        (b"", "not a PNG"),
        (with_settings("[]"), "holds no settings"),
        (with_settings('{"k": {"a": 1}, "prompt": ["x"], "seed": null}'), "holds no settings"),
        (with_settings(json.dumps({"prompt": "x" * 200_000, "seed": 3})), "holds no settings"),
    ]:
        share.locator("input[type=file]").set_input_files(
            {"name": "x.png", "mimeType": "image/png", "buffer": content}
        )
        expect(share.locator(".said")).to_contain_text(words)
