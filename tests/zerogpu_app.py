"""app.py as on a ZeroGPU Space, on a machine without a GPU: the ``spaces`` package schedules,
forks, pickles and releases for real, but leaves torch alone: forks compute on the CPU."""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    # Where torch cannot be imported the package neither emulates CUDA nor moves tensors to one.
    sys.modules["torch"] = None
    import spaces  # noqa: F401

    del sys.modules["torch"]
    runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
