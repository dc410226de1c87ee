"""Links that reproduce a run: parameters in the address, checked and clamped when a page opens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

from app.params import BOUNDS, MAX_PROMPT, SWITCHES, RunParams, problem

SHORT = {"prompt": "p", "seed": "s"}  # the two that everybody reads
LONG = {short: name for name, short in SHORT.items()}


def to_query(params: Mapping) -> str:
    """The part of an address after "?"."""
    values = {name: params[name] for name in RunParams.names()}
    shown = {name: str(v).lower() if isinstance(v, bool) else v for name, v in values.items()}
    return urlencode({SHORT.get(name, name): value for name, value in shown.items()})


def from_query(query: Mapping) -> dict:
    """Values of parameters in a query, by name. Numbers out of range are moved to the nearest end,
    whatever else is no value at all is left out, as is what is no parameter."""
    found = {}
    for key, text in query.items():
        name = LONG.get(key, key)
        if name not in RunParams.names() or not isinstance(text, str):
            continue
        value = _value(name, text)
        if value is not None and problem(name, value) is None:
            found[name] = value
    return found


def _value(name: str, text: str):
    if name == "prompt":
        return text[:MAX_PROMPT]
    if name in SWITCHES:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if name not in BOUNDS:
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    bound = BOUNDS[name]
    number = min(max(number, bound.low), bound.high)
    if name == "temperature" and 0 < number < 0.01:
        number = 0.01
    return round(number) if bound.whole else number


def query_of(address: str) -> dict[str, str]:
    """The query of an address, such as the one a request says it comes from."""
    try:
        return dict(parse_qsl(urlsplit(address).query))
    except ValueError:
        return {}
