"""Visitors of a running app, as a browser's requests: they run, stop, walk away, send nonsense."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field

import httpx

LANES = ("ar", "eagle2", "lantern")
PLACE = re.compile(r"In line: (\d+) runs? (?:is|are) ahead")
DONE_WORDS = "Same seed, same luck"
# (index in the inputs, wrong value): what a broken or hostile client sends.
NONSENSE = [
    ("prompt", ""), ("prompt", None), ("prompt", "x" * 100_000), ("seed", -1), ("seed", "seven"),
    ("k", 1e99), ("delta", float("1e308")), ("temperature", -0.5), ("cfg", [3]), ("nodes", 0),
    ("rule", "none"), ("model", "../../etc/passwd"), ("coupled", "yes"), ("depth", {"a": 1}),
]  # fmt: skip
KINDS = {"run": 8, "stop": 3, "cancel": 2, "leave": 3, "nonsense": 3, "flood": 1}


@dataclass
class Tally:
    """What all visitors saw. ``wrong`` are broken promises, in words; ``outcomes`` counts the
    rest."""

    outcomes: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self.lock:
            self.outcomes[what] += 1

    def complain(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what)


class Visitor:
    """One browser session. ``values`` are the inputs of the Compare tab by name, in order."""

    def __init__(self, address: str, timeout: float = 400):
        self.http = httpx.Client(base_url=f"{address}/gradio_api", timeout=timeout)
        self.session = uuid.uuid4().hex[:12]
        config = httpx.get(f"{address}/config", timeout=120).json()
        functions = {d["api_name"]: d for d in config["dependencies"] if d["api_name"]}
        self.compare = functions["compare"]["id"]
        self.stop_id = functions["stop"]["id"]
        outputs = functions["compare"]["outputs"]
        ids = {c["props"].get("elem_id"): c["id"] for c in config["components"]}
        self.places = {mode: outputs.index(ids[f"lt-image-{mode}"]) for mode in LANES}
        self.status_place = outputs.index(ids["lt-status"])

    def join(self, values: dict) -> str:
        """Put a run in the queue: its event id."""
        answer = self.http.post(
            "/queue/join",
            json={"data": list(values.values()), "fn_index": self.compare,
                  "session_hash": self.session},
        )  # fmt: skip
        if answer.status_code != 200:
            raise Refused(json.dumps(answer.json()))
        return answer.json()["event_id"]

    def messages(self):
        """The server's messages to this session until its last run has ended."""
        with self.http.stream("GET", "/queue/data", params={"session_hash": self.session}) as lines:
            for line in lines.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])

    def stop(self) -> None:
        body = {"data": [], "fn_index": self.stop_id, "session_hash": self.session}
        self.http.post("/run/predict", json=body).raise_for_status()

    def cancel(self, event: str) -> None:
        body = {"session_hash": self.session, "event_id": event, "fn_index": self.compare}
        self.http.post("/cancel", json=body)

    def picture(self, value: dict) -> str:
        """Checksum of a picture the server showed."""
        value = value.get("value", value)  # an update or the plain value
        answer = self.http.get("/file=" + value["path"])
        answer.raise_for_status()
        return hashlib.sha256(answer.content).hexdigest()

    def close(self) -> None:
        self.http.close()


class Refused(Exception):
    """The server did not take a run; the message is its answer."""


def run_to_the_end(visitor: Visitor, values: dict) -> tuple[str, list[str], list[int]]:
    """(last status line, checksums of the pictures, places in line that were shown)."""
    visitor.join(values)
    places: list[int] = []
    for message in visitor.messages():
        if message["msg"] == "process_generating":
            text = json.dumps(message["output"]["data"][visitor.status_place])
            places += map(int, PLACE.findall(text))
        if message["msg"] == "process_completed":
            if not message["success"]:
                raise Refused(str(message["output"].get("error")))
            data = message["output"]["data"]
            status = json.dumps(data[visitor.status_place], ensure_ascii=False)
            if DONE_WORDS not in status:
                return status, [], places
            return status, [visitor.picture(data[p]) for p in visitor.places.values()], places
    raise AssertionError("the server ended the conversation without a result")


def behave(address: str, cases: list[dict], expected: list, end: float, seed: int, tally: Tally):
    """A visitor's life until ``end``: random acts, each checked."""
    luck = random.Random(seed)
    while time.monotonic() < end:
        visitor = Visitor(address)
        kind = luck.choices(list(KINDS), list(KINDS.values()))[0]
        number = luck.randrange(len(cases))
        try:
            globals()[f"_{kind}"](visitor, cases[number], expected[number], luck, tally)
        except Refused as error:
            _check_refusal(kind, str(error), tally)
        except (httpx.TimeoutException, httpx.TransportError) as error:
            tally.complain(f"{kind}: no answer ({type(error).__name__})")
        finally:
            visitor.close()


def _check_refusal(kind: str, text: str, tally: Tally) -> None:
    if "runs are waiting already" in text:
        tally.count("refused: line full")
    elif "of your runs are in line" in text:
        tally.count("refused: own limit")
    else:
        tally.complain(f"{kind}: refused with {text[:200]}")


def _run(visitor, case, expected, luck, tally):
    began = time.monotonic()
    status, pictures, places = run_to_the_end(visitor, case)
    tally.waits.append(time.monotonic() - began)
    if not pictures:
        tally.complain(f"run: ended with {status[:200]}")
    elif pictures != expected:
        tally.complain(f"run: other pictures than alone for seed {case['seed']}")
    elif places != sorted(places, reverse=True):
        tally.complain(f"run: somebody overtook, places {places}")
    else:
        tally.count("finished, equal to a run alone")


def _interrupted(visitor, case, luck, act):
    """Join, watch for a moment, ``act``; the messages until the run has ended."""
    event = visitor.join(case)
    until = time.monotonic() + luck.uniform(0, 3)
    acted = False
    for message in visitor.messages():
        if not acted and (time.monotonic() >= until or message["msg"] == "process_completed"):
            acted = True
            if act(event) == "leave":
                return None
        if message["msg"] == "process_completed":
            return message
        if message["msg"] == "close_stream":
            return None
    return None


def _stop(visitor, case, expected, luck, tally):
    message = _interrupted(visitor, case, luck, lambda event: visitor.stop())
    if message is None or not message["success"]:
        text = str(message and message["output"])
        raise Refused(text)
    status = json.dumps(message["output"]["data"][visitor.status_place])
    if "Stopped" not in status and DONE_WORDS not in status:
        tally.complain(f"stop: ended with {status[:200]}")
    tally.count("stopped" if "Stopped" in status else "stopped too late")


def _cancel(visitor, case, expected, luck, tally):
    _interrupted(visitor, case, luck, lambda event: visitor.cancel(event) or "leave")
    tally.count("cancelled")


def _leave(visitor, case, expected, luck, tally):
    _interrupted(visitor, case, luck, lambda event: "leave")
    tally.count("left while it ran")


def _nonsense(visitor, case, expected, luck, tally):
    name, value = luck.choice(NONSENSE)
    try:
        run_to_the_end(visitor, case | {name: value})
    except Refused as error:
        if "Traceback" in str(error) or len(str(error)) < 20:
            tally.complain(f"nonsense {name}={value!r:.40}: answered {str(error)[:200]}")
        tally.count("nonsense answered")
    else:
        tally.complain(f"nonsense {name}={value!r:.40} was accepted")


def _flood(visitor, case, expected, luck, tally):
    """More runs than one visitor may have in line, then away."""
    for _ in range(5):
        visitor.join(case)
    refused, over = 0, 0
    with contextlib.suppress(httpx.ReadTimeout):
        for message in visitor.messages():
            if message["msg"] != "process_completed":
                continue
            over += 1
            if not message["success"]:
                _check_refusal("flood", str(message["output"].get("error")), tally)
                refused += 1
            if refused >= 2 or over == 5:
                break
    if refused < 2:
        tally.complain(f"flood: only {refused} of 5 runs at once were refused")
    tally.count("flood held off")


def crowd(address: str, case: dict, tally: Tally, visitors: int = 9, each: int = 3) -> None:
    """More runs of different visitors than the line holds: the last are refused in words, and
    once all have left the line is free again."""
    people = [Visitor(address) for _ in range(visitors)]
    for person in people:
        for _ in range(each):
            person.join(case)
    last = people[-1]
    refused = False
    for message in last.messages():
        if message["msg"] == "process_completed":
            refused = "runs are waiting already" in str(message["output"].get("error"))
            break
    tally.count("refused: line full") if refused else tally.complain("a full line took a run")
    for person in people:
        person.stop()
        person.close()
