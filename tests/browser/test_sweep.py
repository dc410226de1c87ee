"""The Sweep tab on the real app."""

import re

import pytest
from driving import fits, serious
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


@pytest.fixture
def tab(page):
    page.get_by_role("tab", name="Sweep").click()
    expect(page.locator("#lt-sweep .said")).to_contain_text("appears here")
    return page


def test_a_sweep_fills_its_grid_and_a_cell_goes_to_compare(tab):
    page, grid = tab, tab.locator("#lt-sweep")
    page.get_by_label("k", exact=True).fill("50, 1000")
    page.get_by_label("delta", exact=True).fill("0.3")
    page.get_by_role("button", name="Sweep", exact=True).click()
    expect(page.locator("#lt-sweep-status .done")).to_be_visible()
    expect(grid.locator("td button")).to_have_count(2)
    expect(grid.locator(".ar img")).to_have_count(1)
    expect(grid.locator(".said")).to_have_text("3 of 3 pictures.")
    page.get_by_label("Bars and numbers show").select_option("relaxed")
    expect(grid.locator(".value").first).to_contain_text("%")
    assert not serious(page)
    for kind in ("csv", "json", "png"):
        with page.expect_download() as download:
            grid.locator(f"[data-format={kind}]").click()
        assert download.value.suggested_filename == f"lantern-sweep.{kind}"
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)
    page.set_viewport_size({"width": 1440, "height": 900})
    grid.locator("td button").last.click()
    expect(page.locator("#lt-run")).to_be_visible()
    expect(page.get_by_label("number input for k (neighbours)")).to_have_value("1000")
    expect(page.get_by_label("number input for delta (borrowed)")).to_have_value("0.3")


def test_a_sweep_in_line_behind_a_run_can_be_stopped(page):
    page.locator("#lt-run").click()
    expect(page.locator("#lt-status")).to_contain_text("is drawing")
    page.get_by_role("tab", name="Sweep").click()
    page.get_by_role("button", name="Sweep", exact=True).click()
    expect(page.locator("#lt-sweep-stop")).to_be_enabled()
    expect(page.get_by_role("button", name="Sweep", exact=True)).to_be_disabled()
    page.locator("#lt-sweep-stop").click()
    expect(page.locator("#lt-sweep-status .stopped")).to_be_visible()


def test_stop_keeps_what_is_there_and_bad_values_are_answered(tab):
    page = tab
    page.get_by_role("button", name="Sweep", exact=True).click()
    expect(page.locator("#lt-sweep td button").first).to_be_visible()
    page.locator("#lt-sweep-stop").click()
    expect(page.locator("#lt-sweep-status .stopped")).to_contain_text("stays")
    assert 1 <= page.locator("#lt-sweep td button").count() < 9
    page.get_by_label("delta", exact=True).fill("often")
    page.get_by_role("button", name="Sweep", exact=True).click()
    expect(page.get_by_text(re.compile("'often' is not a value of delta"))).to_be_visible()
