"""Copy what the parity tests need of the recorded tensors: python tests/data/trim_parity.py SOURCE.

SOURCE is the folder the official implementation was recorded into (about 20 MB); the result in
tests/data/parity is the same from any run. Tensors that no test reads are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

TARGET = Path(__file__).resolve().parent / "parity"

# Everywhere: what the float32 run is compared with in float64, and inner states of layers.
NEVER = re.compile(r"_f64$|hidden_prenorm|layer\d_out|inputs_embeds|additive|_cached$")
# File -> the tensors to drop besides; None copies the file as it is.
FILES: dict[str, str | None] = {
    "full_keys.json": None,
    "target_hf/config.json": None,
    "target_hf/model.safetensors": None,
    "target_hf/io.safetensors": r"logits_all|retrieved|position_ids_passed|cond_combined|"
    r"p[12]\.decode\.(logits|cfg3)|tree25\d\.(logits|cfg3)|tree5\.logits",
    "target_hf/masks_by_dtype.safetensors": r"_float(16|64)$",
    "target_hf/rope.safetensors": "",
    "target_hf/logits_processing.json": None,
    "target_hf/logits_processing.safetensors": r"ea_probs_[^45]",
    "target_orig/t2i_model_orig_keys.safetensors": None,
    "target_orig/t2i_io.safetensors": r"cond_combined",
    "target_orig/c2i_model_orig_keys.safetensors": None,
    "target_orig/c2i_io.safetensors": "",
    "drafter/config.json": None,
    "drafter/model.safetensors": None,
    "drafter/rope.safetensors": "",
    "drafter/forward.safetensors": r"kv\.",
    "drafter/topk.safetensors": r"retrieve_indices|parent_list",
    "drafter/topk_index.json": None,
    "drafter/variant_b/config.json": None,
    "drafter/variant_b/model.safetensors": None,
    "acceptance/cases.json": None,
    "acceptance/cases.safetensors": None,
    "generate/io.safetensors": r"^static|_T1|_T0\.7|ar_generate|n_paths|len_after|p2\.raw",
    "vq/vq16_tiny_weights_fp16.safetensors": None,
    "vq/vq16_tiny_io.safetensors": r"indices_f64|decoded_from|entry_bchw|encoder_out",
    "vq/vq8_tiny_weights_fp16.safetensors": None,
    "vq/vq8_tiny_io.safetensors": r"indices_f64|decoded_from|entry_bchw|encoder_out",
    "vq/vq16_real_io.safetensors": "",
    "vq/vq8_real_io.safetensors": "",
    "vq/top_511_indices.npy": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder of the recorded tensors")
    source = parser.parse_args().source
    for name, drop in FILES.items():
        to = TARGET / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if drop is not None:
            skip = re.compile(drop or "(?!)")
            tensors = load_file(source / name)
            kept = {k: v for k, v in tensors.items() if not (skip.search(k) or NEVER.search(k))}
            save_file(kept, to)
        elif to.suffix == ".json":
            values = json.loads((source / name).read_text(encoding="utf-8"))
            to.write_text(json.dumps(values, separators=(",", ":")) + "\n", encoding="utf-8")
        else:
            shutil.copyfile(source / name, to)
    with np.load(source / "vq/nn_extra.npz") as extra:
        np.save(TARGET / "vq/normalised_table_first64.npy", extra["normalised_table_first64"])
    total = sum(file.stat().st_size for file in TARGET.rglob("*") if file.is_file())
    print(f"{total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
