"""Tables of a benchmark, in Markdown. Plain data in, text out."""

from __future__ import annotations

import random
from statistics import median

from lantern.runtime import peak_memory
from lantern.trace import PHASES

STABILITY = (1, 2, 5, 10, 20, 50, 100)
RESAMPLES = 200


def tables(runs: list[dict], costs: dict | None, streaming: float | None = None) -> str:
    """Everything about a bench: setting, results, where the time goes, accepted lengths, cost of
    verification by tree size, stability. ``streaming``: seconds of copying the target's weights."""
    parts = [_setting(runs), _results(runs), _phases(runs), _shares(runs, streaming)]
    parts.append(_lengths(runs))
    if costs:
        parts.append(_costs(costs))
    parts.append(_stability(runs))
    return "\n\n".join(part for part in parts if part)


def sweep_tables(runs: list[dict]) -> str:
    """Speed-up over AR, mean accepted length and relaxed share over k and delta."""
    parts = [_setting(runs)]
    groups = _by_variant(runs)
    for temperature in sorted({r["temperature"] for r in runs}):
        mine = {v: g for v, g in groups.items() if g[0]["temperature"] == temperature}
        baseline = _keyed(mine[f"ar/{temperature:g}"])
        rows = {v: g for v, g in mine.items() if g[0]["mode"] == "lantern"}
        deltas = sorted({g[0]["delta"] for g in rows.values()})
        lines = [
            f"Temperature {temperature:g}: speed-up over AR / mean accepted length / relaxed "
            f"share; EAGLE-2 {_cell(mine[f'eagle2/{temperature:g}'], baseline)}.",
            "",
            "| k | " + " | ".join(f"delta {d:g}" for d in deltas) + " |",
            "|---|" + "---|" * len(deltas),
        ]
        for k in sorted({g[0]["k"] for g in rows.values()}):
            cells = [_cell(rows[f"lantern/{temperature:g}/{k}/{d:g}"], baseline) for d in deltas]
            lines.append(f"| {k} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def temperature_table(runs: list[dict]) -> str:
    """Mean accepted length and speed-up of every mode by temperature."""
    groups = _by_variant(runs)
    temperatures = sorted({r["temperature"] for r in runs})
    lines = [
        "Speed-up over AR / mean accepted length / relaxed share:",
        "",
        "| mode | " + " | ".join(f"temperature {t:g}" for t in temperatures) + " |",
        "|---|" + "---|" * len(temperatures),
    ]
    for mode in dict.fromkeys(r["mode"] for r in runs if r["mode"] != "ar"):
        cells = [_cell(groups[f"{mode}/{t:g}"], _keyed(groups[f"ar/{t:g}"])) for t in temperatures]
        lines.append(f"| {mode} | " + " | ".join(cells) + " |")
    return _setting(runs) + "\n\n" + "\n".join(lines)


def _cell(group: list[dict], baseline: dict) -> str:
    ratio = median(baseline[_key(r)]["seconds"] / r["seconds"] for r in group)
    length = median(r["mean_accepted_length"] for r in group)
    share = median(r["relaxed_share"] for r in group)
    return f"{ratio:.2f}x / {length:.2f} / {100 * share:.0f} %"


def _setting(runs: list[dict]) -> str:
    """The machine, and the options with every value they had; k and delta of relaxing modes."""
    where = runs[0]["environment"]
    relaxing = [r for r in runs if r["mode"].startswith("lantern")] or runs
    values = {
        name: ", ".join(f"{v:g}" for v in sorted({r[name] for r in group}))
        for name, group in [("k", relaxing), ("delta", relaxing)]
        + [(name, runs) for name in ("temperature", "cfg", "top_k")]
    }
    return (
        f"{runs[0]['model']} on {where['hardware']} ({where['device']}, {where['threads']} "
        f"threads, {where['dtype']}, torch {where['torch']}); {len(runs)} runs; k {values['k']}; "
        f"delta {values['delta']}; temperature {values['temperature']}; CFG {values['cfg']}; "
        f"top-k {values['top_k']}; peak memory {peak_memory(where['device']):.2f} GiB."
    )


def _results(runs: list[dict]) -> str:
    """``predicted`` is MAL / (c(N)/c(1) + draft/c(1)) from the measured cost of steps."""
    lines = [
        "| variant | tree | decode s (min-max) | speed-up over AR (min-max) | predicted | passes | "
        "MAL | relaxed | tokens = AR's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups = _by_variant(runs)
    baseline = _keyed(groups["ar"])
    one, _ = _step_cost(groups["ar"])
    for variant, mine in groups.items():
        pairs = [(baseline[_key(r)], r) for r in mine]
        verify, draft = _step_cost(mine)
        length = median(r["mean_accepted_length"] for r in mine)
        same = sum(ar["tokens"] == r["tokens"] for ar, r in pairs)
        cells = [
            variant,
            "-" if variant == "ar" else "{nodes}x{depth}x{branch}".format(**mine[0]),
            _spread([r["seconds"] for r in mine]),
            _spread([ar["seconds"] / r["seconds"] for ar, r in pairs]),
            f"{length * one / (verify + draft):.2f}",
            f"{median(r['steps'] for r in mine):.0f}",
            f"{length:.2f}",
            f"{100 * median(r['relaxed_share'] for r in mine):.0f} %",
            f"{same}/{len(pairs)}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _phases(runs: list[dict]) -> str:
    lines = [
        "| variant | " + " | ".join(f"{p} s" for p in PHASES) + " | verify ms a step | "
        "draft ms a step | accept ms a step |",
        "|---|" + "---|" * (len(PHASES) + 3),
    ]
    for variant, mine in _by_variant(runs).items():
        whole = [f"{median(r['seconds_by_phase'][p] for r in mine):.3f}" for p in PHASES]
        steps = [
            f"{1e3 * median(_per_step(r, p) for r in mine):.2f}"
            for p in ("verify", "draft", "accept")
        ]
        lines.append(f"| {variant} | " + " | ".join(whole + steps) + " |")
    return "\n".join(lines)


def _shares(runs: list[dict], streaming: float | None) -> str:
    """An AR step against what it cannot be faster than, and the cost of looking for A(c)."""
    groups = _by_variant(runs)
    one = median(_per_step(r, "verify") for r in groups["ar"])
    lines = []
    if streaming:
        lines.append(
            f"A target pass of AR takes {1e3 * one:.2f} ms, {one / streaming:.2f} times a copy of "
            f"its weights ({1e3 * streaming:.2f} ms)."
        )
    exact = [r for mine in groups.values() for r in mine if r["mode"] == "eagle2"]
    relaxed = [r for mine in groups.values() for r in mine if r["mode"] == "lantern"]
    if exact and relaxed:
        costs = [median(_per_step(r, "accept") for r in mine) for mine in (exact, relaxed)]
        lines.append(
            f"Judging a tree takes {1e3 * costs[0]:.2f} ms in EAGLE-2 and {1e3 * costs[1]:.2f} ms "
            f"with the search for A(c), 1/{one / costs[1]:.0f} of that pass (the paper: 1/9.1)."
        )
    return "\n".join(lines)


def _lengths(runs: list[dict]) -> str:
    """Share of steps that got at least as deep into the tree."""
    groups = {v: g for v, g in _by_variant(runs).items() if v != "ar"}
    counts = {}
    for variant, mine in groups.items():
        total: dict[int, int] = {}
        for run in mine:
            for length, count in run["accepted_lengths"].items():
                total[int(length)] = total.get(int(length), 0) + count
        counts[variant] = total
    most = max((max(c) for c in counts.values()), default=1)
    if most == 1:
        return ""
    lines = [
        "Share of passes that commit at least so many tokens:",
        "",
        "| variant | " + " | ".join(str(n) for n in range(2, most + 1)) + " |",
        "|---|" + "---|" * (most - 1),
    ]
    for variant, total in counts.items():
        steps = sum(total.values())
        shares = [
            sum(c for length, c in total.items() if length >= n) / steps for n in range(2, most + 1)
        ]
        lines.append(f"| {variant} | " + " | ".join(f"{100 * s:.0f} %" for s in shares) + " |")
    return "\n".join(lines)


def _costs(costs: dict) -> str:
    verify = {int(n): s for n, s in costs["verify"].items()}
    lines = [
        "Cost of verifying a tree, c(N)/c(1), and of drafting it, in units of c(1) = "
        f"{1e3 * verify[1]:.2f} ms:",
        "",
        "| N | " + " | ".join(str(n) for n in verify) + " |",
        "|---|" + "---|" * len(verify),
        "| c(N)/c(1) | " + " | ".join(f"{s / verify[1]:.2f}" for s in verify.values()) + " |",
        "",
        "| branch | " + " | ".join(str(b) for b in costs["draft"]) + " |",
        "|---|" + "---|" * len(costs["draft"]),
    ]
    for i, name in enumerate(("first level", "each further level")):
        cells = [f"{s[i] / verify[1]:.2f}" for s in costs["draft"].values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _stability(runs: list[dict]) -> str:
    """How far the mean speed-up of n (prompt, seed) pairs strays, by resampling without
    replacement: 5th to 95th percentile."""
    groups = _by_variant(runs)
    baseline = _keyed(groups["ar"])
    pairs = len({(r["prompt"], r["seed"]) for r in runs})
    sizes = [n for n in STABILITY if n < pairs] + [pairs]
    if pairs < 4:
        return ""
    lines = [
        "Mean speed-up of n prompts and seeds, 5th to 95th percentile over random choices:",
        "",
        "| variant | " + " | ".join(f"n = {n}" for n in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    generator = random.Random(0)
    for variant, mine in groups.items():
        if variant == "ar":
            continue
        ratios: dict[tuple, list[float]] = {}
        for run in mine:
            pair = run["prompt"], run["seed"]
            ratios.setdefault(pair, []).append(baseline[_key(run)]["seconds"] / run["seconds"])
        values = [median(v) for v in ratios.values()]
        cells = []
        for n in sizes:
            means = sorted(sum(generator.sample(values, n)) / n for _ in range(RESAMPLES))
            low, high = means[RESAMPLES // 20], means[-RESAMPLES // 20]
            cells.append(f"{low:.2f}-{high:.2f}" if n < pairs else f"{means[0]:.2f}")
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_variant(runs: list[dict]) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = {}
    for run in runs:
        groups.setdefault(run["variant"], []).append(run)
    return groups


def _per_step(run: dict, phase: str) -> float:
    return run["seconds_by_phase"][phase] / run["steps"]


def _step_cost(mine: list[dict]) -> tuple[float, float]:
    """Median seconds a step: verification with acceptance, drafting."""
    verify = median(_per_step(r, "verify") + _per_step(r, "accept") for r in mine)
    return verify, median(_per_step(r, "draft") for r in mine)


def _keyed(runs: list[dict]) -> dict:
    return {_key(run): run for run in runs}


def _key(run: dict) -> tuple:
    return run["prompt"], run["seed"], run["repeat"]


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
