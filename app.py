"""Start the demo: python app.py. Environment first, since libraries read it when imported.

LANTERN_MODEL names the model to start with, LANTERN_MODELS a folder with more of them.
"""

import argparse
import atexit
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from functools import partial

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")


def main() -> int:
    """Load the first model, serve until interrupted or terminated."""
    parser = argparse.ArgumentParser(prog="app.py", description=__doc__)
    parser.add_argument("--host", help="address to listen at, 0.0.0.0 for every one")
    parser.add_argument("--port", type=_port, help="default: 7860, or the next free one")
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16", "int8"),
        help="default: bf16 on a GPU, else fp32; int8: faster on a CPU, images change a little",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", help="in this desktop's browser as well")
    given = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("lantern").setLevel(logging.INFO)
    # As Ctrl-C: the server closes, temporary files go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if "GRADIO_TEMP_DIR" not in os.environ:
        os.environ["GRADIO_TEMP_DIR"] = tempfile.mkdtemp(prefix="lantern-")
        atexit.register(shutil.rmtree, os.environ["GRADIO_TEMP_DIR"], ignore_errors=True)
    try:
        _serve(given)
    except (ValueError, OSError, OverflowError) as error:
        print(f"app.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the server was up
        pass
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")
    return int(text)


def _check_free(host: str | None, port: int) -> None:
    """OSError with a sentence if somebody listens there; asked before the seconds of loading."""
    try:
        family, *_, place = socket.getaddrinfo(host or "127.0.0.1", port, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise OSError(
            f"cannot listen at port {port} ({error.strerror}); choose another with --port."
        ) from None


def _serve(given: argparse.Namespace) -> None:
    if given.port:
        _check_free(given.host, given.port)
    if os.environ.get("SPACES_ZERO_GPU"):
        import spaces  # noqa: F401  # before torch, whose CUDA it stands in for

    from lantern.checkpoints import entry

    model = os.environ.get("LANTERN_MODEL") or "emoji-128"
    entry(model)  # an unknown name is said before the slower half is imported

    from app import zerogpu
    from app.studio import Studio
    from app.ui import build_demo, launch_options
    from lantern.pipeline import Pipeline
    from lantern.runtime import pick_device, pick_dtype, set_threads

    if zerogpu.active():
        studio = zerogpu.studio(model)
    else:
        set_threads()
        dtype = pick_dtype(given.dtype, pick_device())
        studio = Studio(model, partial(Pipeline.load, dtype=dtype))
    if studio.problem:
        print(f"app.py: {studio.problem} Showing recordings.", file=sys.stderr)
    demo = build_demo(studio)
    demo.launch(
        server_name=given.host, server_port=given.port, quiet=True, prevent_thread_lock=True,
        inbrowser=given.open and _has_desktop(), **launch_options(),
    )  # fmt: skip
    print(f"LANTERN is at {demo.local_url} - Ctrl-C ends it.", flush=True)
    demo.block_thread()


def _has_desktop() -> bool:
    """Whether there is a screen to open a browser on; elsewhere one in text mode might start."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


if __name__ == "__main__":
    sys.exit(main())
