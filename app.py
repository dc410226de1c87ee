"""Start the demo: python app.py. Environment first, since libraries read it when imported.

LANTERN_MODEL names the model to start with, LANTERN_MODELS a folder with more of them.
"""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "GRADIO_TEMP_DIR" not in os.environ:
    os.environ["GRADIO_TEMP_DIR"] = tempfile.mkdtemp(prefix="lantern-")
    atexit.register(shutil.rmtree, os.environ["GRADIO_TEMP_DIR"], ignore_errors=True)
os.environ.setdefault("MPLBACKEND", "agg")

import sys  # noqa: E402

from app.studio import Studio  # noqa: E402
from app.ui import build_demo, launch_options  # noqa: E402
from lantern.runtime import set_threads  # noqa: E402


def main() -> int:
    """Load the first model, serve until interrupted."""
    set_threads()
    try:
        studio = Studio(os.environ.get("LANTERN_MODEL") or "emoji-128")
    except (ValueError, FileNotFoundError) as error:
        print(f"app.py: {error}", file=sys.stderr)
        return 2
    build_demo(studio).launch(**launch_options())
    return 0


if __name__ == "__main__":
    sys.exit(main())
