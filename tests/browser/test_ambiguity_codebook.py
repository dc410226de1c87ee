"""The Ambiguity and Codebook tabs on the real app."""

import re

import pytest
from driving import fits, serious
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_ambiguity_of_the_recorded_run(page):
    page.get_by_role("tab", name="Ambiguity").click()
    page.locator("#lt-ambiguity-run").click()
    found = page.locator("#lt-ambiguity")
    expect(found.locator("svg")).to_have_count(2)
    rows = found.locator("table").first.locator("tbody tr")
    expect(rows.first).to_contain_text("emoji-128, AR")
    top1, top10 = (float(rows.first.locator("td").nth(i).inner_text()) for i in (0, 1))
    assert 0 < top1 < top10 < 1
    expect(rows.filter(has_text="LlamaGen")).to_contain_text("0.206")
    expect(rows.filter(has_text="Anole")).to_contain_text("0.204")
    expect(found.locator("table").last).to_contain_text(re.compile(r"EAGLE-2.*\d+ / \d+ %"))
    page.get_by_label("Curves and maps of").click()
    page.get_by_role("option", name="LANTERN", exact=True).click()
    expect(found.locator("h3").first).to_contain_text("LANTERN")
    assert not serious(page)
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)


def test_neighbours_of_a_code(page):
    page.get_by_role("tab", name="Codebook").click()
    page.get_by_label("Code", exact=True).fill("12")
    page.locator("#lt-code-show").click()
    tiles = page.locator("#lt-neighbours .lt-tiles figure")
    expect(tiles).to_have_count(25)
    expect(tiles.first).to_contain_text("12")
    far = [float(text.split("\n")[-1]) for text in tiles.all_inner_texts()]
    assert far[0] == 0 and far == sorted(far)
    assert not serious(page)
    page.locator("#lt-code-random").click()
    expect(tiles.first).not_to_contain_text(re.compile(r"^12\b"))
    page.get_by_label("Code", exact=True).fill("5000")
    page.locator("#lt-code-show").click()
    expect(page.get_by_text("whole number from 0 to 4095")).to_be_visible()


def test_tokens_are_replaced_in_a_run_and_in_a_picture(page, tmp_path):
    page.get_by_role("tab", name="Codebook").click()
    page.locator("#lt-replace").click()
    found = page.locator("#lt-replaced")
    expect(found).to_contain_text("128 of 256 tokens")
    expect(found.locator("img")).to_have_count(3)
    Image.radial_gradient("L").resize((240, 200)).convert("RGB").save(tmp_path / "mine.png")
    page.get_by_label("Image", exact=True).click()
    page.get_by_role("option", name="my picture").click()
    page.locator("#lt-replace").click()
    expect(page.get_by_text("Choose a picture first")).to_be_visible()
    page.locator("#lt-replace-upload input[type=file]").set_input_files(tmp_path / "mine.png")
    expect(page.locator("#lt-replace-upload img")).to_be_visible()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    page.get_by_label("number input for share of tokens replaced").fill("1")
    page.locator("#lt-replace").click()
    expect(found).to_contain_text("256 of 256 tokens")
    page.locator("#lt-replace-upload").get_by_label("Remove Image").click()
    page.locator("#lt-replace-upload input[type=file]").set_input_files(tmp_path / "broken.png")
    page.locator("#lt-replace").click()
    expect(page.get_by_text("no picture that can be read here")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)
