"""The codebook: distances, its map, random replacement."""

import pytest
import torch
from PIL import Image

from app.tabs.codebook import opened
from lantern import codebook, pipeline
from lantern.neighbours import neighbour_table


@pytest.fixture
def uploads(tmp_path, monkeypatch):
    """The folder uploads land in."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    return tmp_path / "uploads"


def test_only_uploads_are_opened(uploads, tmp_path):
    picture = Image.new("L", (30, 20), 90)
    picture.save(uploads / "mine.png")
    picture.save(tmp_path / "secret.png")
    assert opened({"path": str(uploads / "mine.png")}).size == (30, 20)
    for path in (tmp_path / "secret.png", uploads / ".." / "secret.png", "https://x/y.png", 7):
        with pytest.raises(ValueError, match="no picture that can be read"):
            opened({"path": path if path == 7 else str(path)})
    for nothing in (None, {}, [], {"path": ""}):
        with pytest.raises(ValueError, match="Choose a picture first"):
            opened(nothing)


def test_unreadable_uploads_are_answered(uploads):
    Image.new("1", (16_000, 12_000)).save(uploads / "huge.png")
    (uploads / "cut.png").write_bytes((uploads / "huge.png").read_bytes()[:60])
    (uploads / "text.png").write_text("no picture")
    (uploads / "empty.png").write_bytes(b"")
    for file in uploads.iterdir():
        with pytest.raises(ValueError, match="at most 50 megapixels"):
            opened({"path": str(file)})


@pytest.fixture(scope="module")
def shipped():
    return pipeline.load("emoji-128", "cpu")


def unit_codes(size=40, width=5):
    torch.manual_seed(3)
    return torch.nn.functional.normalize(torch.randn(size, width), dim=-1)


def test_distances_put_a_code_first_and_agree_with_the_neighbour_table():
    codes = unit_codes()
    far = codebook.distances(codes, 7)
    assert far[7] == 0 and far.shape == (40,)
    assert far.argsort()[1:].tolist() == neighbour_table(codes, 39)[7].tolist()
    for wrong in (-1, 40, 1.5, True, None):
        with pytest.raises(ValueError, match="0 to 39"):
            codebook.distances(codes, wrong)


def test_the_plane_holds_the_two_widest_directions():
    torch.manual_seed(0)
    codes = torch.randn(200, 4) * torch.tensor([0.1, 3.0, 0.2, 1.0])
    flat = codebook.plane(codes)
    assert torch.allclose(flat, codebook.plane(codes))
    centred = codes - codes.mean(0)
    assert torch.corrcoef(torch.stack([flat[:, 0], centred[:, 1]]))[0, 1] > 0.99
    assert torch.corrcoef(torch.stack([flat[:, 1], centred[:, 3]]))[0, 1] > 0.95


def test_replacement_takes_the_share_from_the_nearest_k():
    table = neighbour_table(unit_codes(), 20)
    tokens = torch.randint(0, 40, (256,), generator=torch.Generator().manual_seed(1)).tolist()
    assert codebook.replace_tokens(tokens, table, 0.0, 5, 0) == tokens
    half = codebook.replace_tokens(tokens, table, 0.5, 5, 0)
    places = {i for i, (a, b) in enumerate(zip(tokens, half, strict=True)) if a != b}
    assert len(places) == 128
    assert all(half[i] in table[tokens[i], :5].tolist() for i in places)
    assert half == codebook.replace_tokens(tokens, table, 0.5, 5, 0)
    less = codebook.replace_tokens(tokens, table, 0.25, 5, 0)
    fewer = {i for i, (a, b) in enumerate(zip(tokens, less, strict=True)) if a != b}
    assert len(fewer) == 64 and fewer < places
    whole = codebook.replace_tokens(tokens, table, 1.0, 1, 9)
    assert whole == [int(table[t, 0]) for t in tokens]


@pytest.mark.parametrize(
    "share, k, tokens", [(1.2, 5, [1]), (float("nan"), 5, [1]), (0.5, 0, [1]), (0.5, 21, [1]),
                         (0.5, 5, [40])],
)  # fmt: skip
def test_replacement_refuses_what_makes_no_sense(share, k, tokens):
    with pytest.raises(ValueError, match="must be"):
        codebook.replace_tokens(tokens, neighbour_table(unit_codes(), 20), share, k, 0)


def test_patches_and_pictures_of_the_shipped_model(shipped):
    shown = codebook.patches(shipped, [0, 5, 4095])
    assert [patch.size for patch in shown] == [(16, 16)] * 3
    gradient = Image.linear_gradient("L").resize((300, 200))
    tokens = codebook.encode(shipped, gradient)
    back = shipped.image(tokens)
    middle = gradient.crop((50, 0, 250, 200)).resize((128, 128)).convert("L")
    mine, theirs = (torch.tensor(list(i.convert("L").tobytes())).float() for i in (back, middle))
    assert (mine - theirs).abs().mean() < 12
