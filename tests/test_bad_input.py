"""Anything at all into every public parameter: an answer in words, never a traceback or a hang.

Property-based, more than 2,000 cases in all (CASES); the same ones on every run.
"""

import json
import string
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_app import GOOD, SmallPipeline, finish, load_small
from test_payload import in_a_loop

from app.export import bundle
from app.inspection import server_functions
from app.jobs import DONE, FAILED
from app.params import BOUNDS, CHOICES, RunParams, problem
from app.payload import from_payload
from app.share import from_query, query_of
from app.studio import Studio
from lantern.__main__ import main
from lantern.config import ALL_MODES, DecodeOptions, TreeShape, VQConfig, config_from_dict
from lantern.formats import read_state
from lantern.pipeline import Pipeline
from lantern.trace import DecodeTrace

CASES = {
    "params": 500, "options": 300, "run": 120, "cli": 250, "config": 250, "weights": 150,
    "link": 200, "payload": 150, "question": 150, "prompt": 200,
}  # fmt: skip

numbers = st.one_of(
    st.integers(), st.floats(), st.integers(-2, 70), st.floats(-1, 3),
    st.sampled_from([0, -0.0, 1, 1e-9, 1e308, -1e308, 2**32, 2**63, 2**64, 10**400]),
)  # fmt: skip
odd_prompts = st.sampled_from([
    "", " ", "\n\t", "\x00", "a\x00b\x1b[31m", "x" * 100_000, "cat " * 25_000, "\u202eapple\u202c",
    "\U0001f34e\U0001f9d1\u200d\U0001f680", "\ud83d", "a \udc80 b", "../../etc/passwd",
    "<script>alert(1)</script>", "{{ 7*7 }} ${7*7} %s %n", "'; drop table runs; --",
    "\u0645\u0631\u062d\u0628\u0627", "\u4e00\u53ea\u82f9\u679c", "e\u0301" * 500, "\ufeff",
    "\u200b\u200b",
])  # fmt: skip
texts = st.one_of(st.text(max_size=40), odd_prompts)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)


def cases(name: str):
    """``CASES[name]`` examples, repeatable; slow machines are no failures."""
    return settings(
        max_examples=CASES[name], derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def in_words(text: str) -> None:
    assert isinstance(text, str) and text.strip() and "Traceback" not in text


def test_there_are_enough_cases():
    assert sum(CASES.values()) >= 2000


# -- the page ------------------------------------------------------------------------------------


@cases("params")
@given(
    st.one_of(
        *(st.tuples(st.just(name), st.one_of(numbers, anything)) for name in RunParams.names())
    )
)
def test_any_value_of_any_parameter_is_answered(changed):
    name, value = changed
    message = problem(name, value)
    values = dict(zip(RunParams.names(), GOOD, strict=True)) | {name: value}
    if message is not None:
        in_words(message)
        with pytest.raises(ValueError):
            RunParams.from_values(*values.values())
    else:
        DecodeOptions(**_decoding(RunParams.from_values(*values.values())))


def _decoding(params: RunParams) -> dict:
    values = params.decode_changes()
    tree = {name: values.pop(name) for name in ("nodes", "depth", "branch", "growth")}
    return values | {"tree": TreeShape(**tree)}


@pytest.fixture(scope="module")
def studio():
    return Studio(load=load_small)


def _within(name: str):
    bound = BOUNDS[name]
    ends = st.sampled_from([bound.low, bound.high])
    if bound.whole:
        return st.one_of(ends, st.integers(int(bound.low), int(bound.high)))
    return st.one_of(ends, st.floats(bound.low, bound.high))


valid = st.fixed_dictionaries(
    {name: _within(name) for name in BOUNDS}
    | {name: st.sampled_from(words) for name, (_, words) in CHOICES.items()}
    | {"coupled": st.booleans(), "prompt": texts}
)


@cases("run")
@given(valid)
def test_whatever_the_sliders_allow_is_drawn_or_refused(studio, chosen):
    """The smallest and largest of everything at once; exact modes stay exact."""
    values = dict(zip(RunParams.names(), GOOD, strict=True)) | chosen
    try:
        params = RunParams.from_values(*values.values())
        job = finish(studio.submit(params, "me"))
    except ValueError as error:
        in_words(str(error))
        return
    if job.state == FAILED:
        in_words(job.message)
        assert "failed" not in job.message, "refused, not broken"
        return
    assert job.state == DONE
    drawn = {mode: lane.trace.tokens for mode, lane in job.lanes.items()}
    for mode in set(drawn) & {"eagle2", "eagle2-coupled"}:
        assert drawn[mode] == drawn["ar"]


@cases("link")
@given(st.dictionaries(st.sampled_from([*RunParams.names(), "p", "s", "x"]), anything), texts)
def test_any_link_opens_the_page(query, address):
    for name, value in from_query(query).items():
        assert problem(name, value) is None
    from_query(query_of(address))


@cases("payload")
@given(st.one_of(anything, st.fixed_dictionaries({"lanes": st.lists(anything, max_size=2)})))
def test_any_run_that_comes_back_is_a_run_or_refused(value):
    with pytest.raises(ValueError):
        from_payload(value)
    in_words(bundle({"run": value})["error"])


question = st.fixed_dictionaries(
    {},
    optional={
        "model": st.one_of(st.just("emoji-128"), anything), "prompt": texts, "tokens": anything,
        "position": anything, "refused": anything, "asker": anything,
        "options": st.dictionaries(
            st.sampled_from(["mode", "k", "delta", "rule", "top_k", "seed", "cfg"]), anything
        ),
    },
)  # fmt: skip


@cases("question")
@given(st.one_of(question, anything), st.integers(0, 1))
def test_any_question_about_a_token_is_answered(studio, value, which):
    answer = in_a_loop(server_functions(studio)[which](value))
    in_words(answer["error"])
    json.dumps(answer)


# -- the library and the command line ------------------------------------------------------------


@cases("options")
@given(
    st.dictionaries(
        st.sampled_from(sorted(DecodeOptions().to_dict())), st.one_of(numbers, anything), max_size=4
    )
)
def test_any_options_are_options_or_refused(changes):
    tree = {k: changes.pop(k) for k in ("nodes", "depth", "branch", "growth") if k in changes}
    try:
        options = DecodeOptions(**changes, tree=TreeShape(**tree))
    except ValueError as error:
        in_words(str(error))
    else:
        assert options.mode in ALL_MODES and 0 <= options.temperature <= 10


FLAGS = ["--k", "--delta", "--temperature", "--cfg", "--top-k", "--top-p", "--nodes", "--depth",
         "--branch", "--tree", "--rule", "--factor", "--pick", "--seed", "--mode", "--model",
         "--threads", "--dtype", "--device", "--out", "--json", "--model-dir", "--bad"]  # fmt: skip
words = st.one_of(
    numbers.map(lambda n: str(n)[:300]),
    texts.map(lambda text: text[:2000]),
    st.sampled_from(["auto", "ar", "eagle2", "tvd", "cpu", "cuda:99", "meta", "static", "/", ""]),
)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The command line on a model of 4 x 4 tokens, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    class Tiny(SmallPipeline):
        def generate(self, prompt, options, on_step, nodes=None):
            trace = self.new_trace(prompt, options)
            for event in self.stream(prompt, options, trace):
                on_step(event)
            return trace, self.finish(trace)

    def load(name, device="auto", **_):
        from lantern.runtime import pick_device

        pick_device(device)
        return Tiny(name)

    monkeypatch.setattr(Pipeline, "load", load)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


@cases("cli")
@given(texts, st.lists(st.tuples(st.sampled_from(FLAGS), words), max_size=3))
def test_any_command_line_ends_with_a_sentence(tiny, prompt, options):
    import contextlib
    import io

    said = io.StringIO()
    arguments = [f"{flag}={word}" for flag, word in options if flag not in ("--out", "--json")]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(["generate", *arguments, "--", prompt])
        except SystemExit as stop:  # argparse
            code = stop.code
    assert code in (0, 2)
    if code:
        in_words(said.getvalue())
        assert said.getvalue().count("\n") == 1


# -- files ---------------------------------------------------------------------------------------


@cases("config")
@given(
    st.one_of(
        st.dictionaries(
            st.sampled_from(list(VQConfig.__dataclass_fields__)), st.one_of(numbers, anything)
        ),
        st.dictionaries(st.text(max_size=9), anything, max_size=3),
    )
)
def test_any_config_is_a_config_or_refused(values):
    try:
        config_from_dict(VQConfig, values, where="config.json")
    except ValueError as error:
        assert str(error).startswith("config.json: ")
    with pytest.raises(ValueError):
        DecodeTrace.from_dict(values)


@cases("weights")
@given(st.binary(max_size=400), st.sampled_from([".safetensors", ".pt", ".bin"]))
def test_any_bytes_in_a_weight_file_are_refused(tmp_path_factory, content, kind):
    file = Path(tmp_path_factory.getbasetemp()) / f"fuzz{kind}"
    file.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert read_state(file) == {}
        except ValueError as error:
            in_words(str(error))


# -- the text encoder of the shipped model -------------------------------------------------------


@pytest.fixture(scope="module")
def encoder():
    from lantern import checkpoints
    from lantern.models.text import TextEncoder

    return TextEncoder(checkpoints.find("emoji-128", "text").folder, 24)


@cases("prompt")
@given(
    st.one_of(
        odd_prompts, st.text(string.printable, max_size=120), st.text(max_size=60),
        st.text(st.characters(categories=["Cs", "Cc", "Cf"]), max_size=9),
    )
)  # fmt: skip
def test_any_prompt_is_encoded_or_refused(encoder, prompt):
    try:
        checked = encoder.check(prompt)
    except ValueError as error:
        in_words(str(error))
        assert len(str(error)) < 300
        return
    caption, valid = encoder.condition(checked)
    assert caption.shape == (24, 384) and caption.isfinite().all() and valid.any()
    json.dumps(checked).encode()
