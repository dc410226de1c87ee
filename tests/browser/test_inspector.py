"""Layers of the token map, single tokens from inside, and the walk through the passes."""

import re

import pytest
from driving import fits, serious
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

KINDS = "() => window.lanternRun.lanes.find((l) => l.mode === 'lantern').tokens.kind"


def cell(page, position: int, grid: int = 16) -> dict:
    """Where a token lies on the map's canvas."""
    side = 256 / grid
    return {"x": (position % grid + 0.5) * side, "y": (position // grid + 0.5) * side}


@pytest.fixture
def after_run(page):
    """The page with the recording it opens on; live runs look the same (test_compare.py)."""
    expect(page.locator("#lt-look .look")).to_be_visible()
    return page


def test_tokens_are_looked_into_and_passes_walked_through(after_run):
    page = after_run
    canvas, look = page.locator("#lt-map canvas"), page.locator("#lt-look")
    relaxed = page.evaluate(KINDS).index("r")
    canvas.hover(position=cell(page, relaxed))
    expect(page.locator("#lt-map .cell")).to_contain_text("The target drew")
    canvas.click(position=cell(page, relaxed))
    expect(look.locator(".token .title")).to_have_text(f"Token {relaxed}")
    expect(look.locator(".pair figure")).to_have_count(2)
    expect(look.locator(".strict")).to_contain_text("Strict EAGLE-2 would have refused it")
    # Two pictures of one place that differ in a token.
    sources = [image.get_attribute("src") for image in look.locator(".pair img").all()]
    assert sources[0] != sources[1]
    assert look.locator(".row figure").count() >= 12
    chosen = look.locator(".row .drew")
    expect(chosen).to_have_count(1)
    expect(look.locator(".bars .bar.drew").first).to_be_visible()
    expect(look.locator(".bars").first).to_contain_text("won after the noise")
    title = look.locator(".pass .title")
    first = title.inner_text()
    look.locator(".next").click()
    expect(title).not_to_have_text(first)
    look.locator(".back").click()
    expect(title).to_have_text(first)
    expect(look.locator("svg g")).to_have_count(3)  # the root and two drafts
    look.locator(".tree").focus()
    page.keyboard.press("ArrowRight")
    expect(title).not_to_have_text(first)
    look.locator("input[type=range]").fill("0")
    expect(look.locator(".summary")).to_contain_text("draws token 0")
    # By keyboard: arrows choose, Enter opens.
    canvas.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(look.locator(".token .title")).to_have_text("Token 0")
    expect(look).to_contain_text("The target" if page.evaluate(KINDS)[0] == "e" else "target's own")
    assert not serious(page)
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)


def test_layers(after_run):
    page = after_run
    layers, shown = page.get_by_label("Layer"), page.locator("#lt-map .range")
    for name in ("length", "mass", "rank", "distance", "p", "difference", "entropy"):
        layers.select_option(name)
        expect(shown).to_contain_text(re.compile(r"from [\d.]+ to [\d.]+"))
        expect(page.locator("#lt-map canvas")).to_have_attribute("data-layer", name)
    page.locator("#lt-map canvas").hover(position=cell(page, 40))
    expect(page.locator("#lt-map .cell")).to_contain_text("entropy of the target:")
    # Every value lies over its own picture: AR does not differ from itself.
    page.get_by_role("radio", name="AR", exact=True).check()
    layers.select_option("difference")
    expect(shown).to_have_text("from 0 to 0")
    layers.select_option("rank")
    expect(shown).to_contain_text("no such token")


@pytest.mark.parametrize("grid", [16, 32])
def test_a_map_is_drawn_within_a_frame(after_run, grid):
    """Median of 30 redraws of 256 and of 1,024 tokens, the latter made of the run's own."""
    page = after_run
    page.evaluate(
        """(grid) => {
          const lane = window.lanternRun.lanes.find((l) => l.mode === "lantern");
          const many = (list) =>
            Array.from({ length: grid * grid }, (_, i) => list[i % list.length]);
          for (const [name, column] of Object.entries(lane.tokens))
            lane.tokens[name] = name === "kind" ? many(column).join("") : many(column);
          lane.grid = grid;
        }""",
        grid,
    )
    times = page.evaluate(
        """async () => {
          const canvas = document.querySelector("#lt-map canvas");
          const times = [];
          for (let i = 0; i < 30; i++) {
            document.dispatchEvent(new CustomEvent("lantern-step", { detail: { positions: [i] } }));
            times.push(Number(canvas.dataset.ms));
            await new Promise(requestAnimationFrame);
          }
          return times.sort((a, b) => a - b);
        }"""
    )
    print(f"{grid * grid} tokens: median {times[15]:.2f} ms, most {times[-1]:.2f} ms")
    assert times[15] < 16
