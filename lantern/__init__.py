"""Relaxed speculative decoding for visual autoregressive models.

import lantern
pipeline = lantern.load("emoji-128")
trace, image = pipeline.generate("a red apple on the grass", mode="lantern", seed=20)
"""

from lantern.config import DecodeOptions, TreeShape
from lantern.pipeline import Pipeline, load
from lantern.trace import DecodeTrace, StepEvent

__all__ = ["DecodeOptions", "DecodeTrace", "Pipeline", "StepEvent", "TreeShape", "load"]
