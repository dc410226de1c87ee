"""Scenes, captions, the loop and each training step on something tiny."""

import json

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from tiny_decoder import TINY, make_decoder

from lantern.checkpoints import in_folder
from lantern.formats import load_target
from lantern.models.llamagen import Transformer
from lantern.training import data, drafter, target
from lantern.training.art import STYLES, Art, Concept, read_concepts
from lantern.training.curves import write_report
from lantern.training.distribution import frechet_distance, precision_recall
from lantern.training.loop import Budget, Optimisation, Run
from lantern.training.shards import Shard, Shards, make_shard
from lantern.training.tokenizer import psnr, spherical_kmeans, to_tensor

FAST = Optimisation(lr=5e-2, warmup=5, report_every=5, ema=0.9)


@pytest.fixture
def art() -> Art:
    """Two flat discs in place of the real drawings."""
    y, x = np.mgrid[:128, :128] - 63.5
    disc = (y**2 + x**2 < 55**2).astype(np.uint8)
    images = [np.stack([disc * c, disc * 40, disc * 200, disc * 255], -1) for c in (255, 90)]
    return Art(np.stack(images).astype(np.uint8), ["disc", "disc"], list(STYLES))


def test_concepts_are_distinct_and_have_a_core():
    concepts, core = read_concepts(), read_concepts(core_only=True)
    names = [c.name for c in concepts]
    assert len(set(names)) == len(names) > 150
    assert 90 <= len(core) < len(concepts) and all(c.core for c in core)
    by_name = {c.name: c for c in concepts}
    assert "puppy" in by_name["dog"].synonyms and by_name["dog"].label == "dog face"


def test_scenes_are_a_function_of_their_spec(art):
    for name in data.BACKGROUNDS:
        spec = data.SceneSpec(0, name, False, seed=5)
        image = data.render(art, spec)
        assert image.shape == (128, 128, 3) and image.dtype == np.uint8
        assert (image == data.render(art, spec)).all()
        assert (image != data.render(art, data.SceneSpec(0, name, False, seed=6))).any()


def test_held_out_pairs_stay_out_of_training(art):
    concepts = [Concept("disc", "disc"), Concept("plate", "disc")]
    rng = np.random.default_rng(0)
    seen, kept = set(), set()
    for _ in range(600):
        spec, concept, _ = data.sample_spec(art, concepts, rng, jitter=data.Jitter())
        seen.add((concept.name, spec.background))
    pairs = [(c.name, b) for c in concepts for b in data.BACKGROUNDS]
    kept = {pair for pair in pairs if data.is_held_out(*pair)}
    assert seen == set(pairs) - kept


def test_captions_vary_but_keep_their_meaning():
    rng = np.random.default_rng(0)
    dog = Concept("dog", "dog face", ("puppy",))
    captions = {data.sample_caption(dog, "grass", "3D", rng) for _ in range(400)}
    assert len(captions) > 30
    assert all("dog" in c or "puppy" in c for c in captions)
    assert any("style" not in c for c in captions) and any("grass" not in c for c in captions)
    assert data.canonical_caption("dog", "orange", "3D") == (
        "dog on an orange background, 3D style"
    )


def test_psnr_and_kmeans():
    image = to_tensor([np.zeros((4, 4, 3), np.uint8)])
    assert psnr(image + 0.2, image) == pytest.approx(20.0, abs=1e-4)
    torch.manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(500, 3), dim=-1)
    centres = spherical_kmeans(points, 20)
    assert centres.norm(dim=-1).sub(1).abs().max() < 1e-5
    random = points[:20]
    assert (points @ centres.T).amax(1).mean() > (points @ random.T).amax(1).mean()


def line_run(folder, steps: int) -> Run:
    """Fit a line; the data is a function of the step."""
    torch.manual_seed(0)
    run = Run(folder, torch.nn.Linear(2, 1), Budget(steps), FAST, config={})
    for step in run.steps():
        x = torch.randn(8, 2, generator=torch.Generator().manual_seed(step))
        run.update((run.model(x) - x.sum(1, keepdim=True)).square().mean())
    return run


def test_interrupted_training_resumes_where_it_was(tmp_path):
    class Stop(Exception):
        pass

    torch.manual_seed(0)
    run = Run(tmp_path / "b", torch.nn.Linear(2, 1), Budget(40), FAST, config={})
    with pytest.raises(Stop):
        for step in run.steps():
            x = torch.randn(8, 2, generator=torch.Generator().manual_seed(step))
            run.update((run.model(x) - x.sum(1, keepdim=True)).square().mean())
            if step == 19:
                run.step += 1  # as the loop would have counted it
                run.save()
                raise Stop
    resumed, whole = line_run(tmp_path / "b", 40), line_run(tmp_path / "a", 40)
    assert resumed.step == whole.step == 40
    torch.testing.assert_close(resumed.model.weight, whole.model.weight)
    torch.testing.assert_close(resumed.ema, whole.ema)
    lines = (tmp_path / "a" / "log.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == 8 and losses[-1] < losses[0]


def test_a_finished_run_can_be_extended(tmp_path):
    assert line_run(tmp_path, 10).step == 10
    assert line_run(tmp_path, 10).step == 10
    assert line_run(tmp_path, 15).step == 15


def test_divergence_and_missing_budget_are_reported(tmp_path):
    run = Run(tmp_path, torch.nn.Linear(2, 1), Budget(3), FAST, config={})
    with pytest.raises(RuntimeError, match="diverged at step 0"):
        for _ in run.steps():
            run.update(run.model(torch.full((1, 2), torch.nan)).sum())
    with pytest.raises(ValueError, match="--steps or --minutes"):
        Budget()


def tiny_shard(count: int) -> Shard:
    """Images of one repeated token each, told by the caption."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(8, (count,), generator=generator)
    words = torch.randn(8, TINY.caption_dim, generator=generator)
    tokens = kinds[:, None].expand(count, TINY.image_tokens).short().contiguous()
    offsets = torch.arange(0, 2 * count + 1, 2).int()
    return Shard(tokens, words[kinds].repeat_interleave(2, 0).half(), offsets)


def test_shards_are_made_once_and_walked_in_turn(tmp_path):
    made = []

    def make(size, number):
        made.append(number)
        return tiny_shard(size)

    for _ in range(2):
        shards = Shards(tmp_path, make, 2, 16)
        assert [len(shards.get(epoch)) for epoch in range(4)] == [16] * 4
    assert made == [0, 1]
    batch = shards.get(0).batch(torch.tensor([3, 5]), TINY.prefix)
    assert batch.tokens.shape == (2, 16) and batch.valid.sum(1).tolist() == [2, 2]
    assert not batch.captions[:, :-2].any() and batch.captions[:, -2:].any()


def test_shards_say_what_is_drawn_and_where(art):
    class OneColour:
        """Stands for a tokenizer: 4 x 4 tokens."""

        def encode(self, images):
            return torch.zeros(len(images), 4, 4)

    class Words:
        def encode(self, captions):
            return [torch.zeros(len(caption.split()), 8) for caption in captions]

    concepts = [Concept("plate", "plate"), Concept("disc", "disc")]
    middle = data.Jitter(64, 64, 0, 1, False)
    shard = make_shard(art, concepts, OneColour(), Words(), 40, 3, middle)
    batch = shard.batch(torch.arange(40), 24)
    assert set(batch.labels.tolist()) == {2, 3}  # the disc in either style
    cells = batch.drawn.view(-1, 4, 4)
    assert cells[:, 1:3, 1:3].all() and cells.sum((1, 2)).eq(4).all()


def test_tokens_beside_the_drawing_weigh_less():
    torch.manual_seed(0)
    model, batch = Transformer(TINY), tiny_shard(4).batch(torch.arange(4), TINY.prefix)
    assert batch.drawn.all()
    batch.tokens.random_(TINY.vocab_size)
    whole = target.next_token_loss(model, batch)
    batch.drawn[:, 4:] = False
    assert target.next_token_loss(model, batch) == whole
    drawn = target.next_token_loss(model, batch, 0.0)
    batch.drawn.logical_not_()
    beside = target.next_token_loss(model, batch, 0.0)
    batch.drawn.logical_not_()
    share = 4 / TINY.image_tokens
    torch.testing.assert_close(whole, share * drawn + (1 - share) * beside)
    light = target.next_token_loss(model, batch, 0.5)
    weights = torch.tensor([share, 0.5 * (1 - share)])
    torch.testing.assert_close(light, (drawn * weights[0] + beside * weights[1]) / weights.sum())


def test_the_reader_learns_to_name_drawings():
    torch.manual_seed(0)
    model, shard = Transformer(TINY), tiny_shard(32)
    shard.labels = shard.tokens[:, 0].clone()
    reader = target.DrawingReader(model, 8)
    steps = torch.optim.Adam([*model.parameters(), *reader.parameters()], 1e-2)
    losses = []
    for _ in range(40):
        batch = shard.batch(torch.arange(32), TINY.prefix)
        target.next_token_loss(model, batch)
        losses.append(reader(batch.labels))
        steps.zero_grad()
        losses[-1].backward()
        steps.step()
    assert losses[-1] < 0.3 * losses[0]
    target.next_token_loss(model, batch)
    assert reader(torch.full((32,), -1)) == 0


def test_target_and_drafter_learn(tmp_path):
    shards = Shards(tmp_path / "s", lambda size, _: tiny_shard(size), 1, 64)
    held_out = tiny_shard(16)
    target.train_target(
        shards, held_out, tmp_path / "t", tmp_path / "target", Budget(steps=60), config=TINY,
        batch_size=8, lr=1e-2,
    )  # fmt: skip
    logs = [json.loads(line) for line in (tmp_path / "t/log.jsonl").read_text().splitlines()]
    assert logs[-1]["loss"] < 0.6 * logs[0]["loss"]
    trained = load_target(in_folder("emoji-128", "target", tmp_path), TINY.grid)
    assert isinstance(trained, Transformer) and trained.config == TINY

    config = make_decoder().drafter.config
    drafter.train_drafter(
        shards, held_out, trained, tmp_path / "d", tmp_path / "drafter",
        Budget(steps=60), config=config, accelerator=Accelerator(cpu=True), batch_size=8, lr=3e-3,
    )  # fmt: skip
    logs = [json.loads(line) for line in (tmp_path / "d/log.jsonl").read_text().splitlines()]
    assert logs[-1]["agreement"] > 0.5 and logs[-1]["tv"] < logs[0]["tv"]
    assert (tmp_path / "drafter/config.json").is_file()


def test_training_without_art_says_how_to_make_it(tmp_path, capsys):
    from lantern.__main__ import main

    missing = str(tmp_path / "art.npz")
    assert main(["train-tokenizer", "--art", missing, "--steps", "1"]) == 2
    assert "python -m lantern build-data" in capsys.readouterr().err


def test_frechet_distance_of_known_gaussians():
    """Between N(0, 1) and N(3, 4) per axis: 9 + (1 + 4 - 2 * 2) a dimension."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(60_000, 3, generator=generator)
    b = 3 + 2 * torch.randn(60_000, 3, generator=generator)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(a, b) == pytest.approx(30, rel=0.02)


def test_precision_and_recall_see_missing_and_foreign_modes():
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(200, 2, generator=generator)
    right = 50 + torch.randn(200, 2, generator=generator)
    both = torch.cat([left, right])
    precision, recall = precision_recall(both, left + 0.01)
    assert precision > 0.95 and recall == pytest.approx(0.5, abs=0.05)
    precision, recall = precision_recall(left, both + 0.01)
    assert precision == pytest.approx(0.5, abs=0.05) and recall > 0.95


def test_report_of_runs(tmp_path):
    run = tmp_path / "runs" / "target"
    run.mkdir(parents=True)
    lines = [{"step": 20, "minutes": 0.5, "loss": 5.0}]
    lines += [{"step": 40, "minutes": 1.0, "loss": 4.0, "held_out": 4.5}]
    text = "\n".join(map(json.dumps, lines))
    (run / "log.jsonl").write_text(text + '\n{"step": 60, "min')  # killed while writing
    page = write_report(tmp_path / "runs", tmp_path / "out").read_text()
    assert "40 updates in 1 minutes" in page and (tmp_path / "out" / "target.png").exists()
    with pytest.raises(ValueError, match="no run"):
        write_report(tmp_path / "out", tmp_path / "again")
