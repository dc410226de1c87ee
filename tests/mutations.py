"""Remove one defence after the other and see that a test fails: python tests/mutations.py [WORDS].

Not part of ``make test``: it edits a copy of the working tree, one mutation at a time. Prints the
table of docs/reliability.md; with WORDS only the promises or files that contain them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Defence:
    """``old`` in ``file`` keeps ``promise``; with ``new`` in its place ``test`` must fail."""

    promise: str
    file: str
    old: str
    new: str
    test: str


DEFENCES = [
    Defence(
        "a changed weight file is refused",
        "lantern/pipeline.py",
        "        checksums.verify(checkpoints.folder_of(name, model_dir))\n",
        "",
        "tests/test_broken_files.py -k flip_a_bit-checksums",
    ),
    Defence(
        "no code in a file is run",
        "lantern/formats.py",
        "weights_only=True",
        "weights_only=False",
        "tests/test_formats.py -k code_in_a_file",
    ),
    Defence(
        "a damaged table is made anew",
        "lantern/neighbours.py",
        "return table if digest == checksum(table) else None",
        "return table",
        "tests/test_broken_files.py -k 'neighbour_table and flip_a_bit'",
    ),
    Defence(
        "a full disk leaves no half-written cache",
        "lantern/neighbours.py",
        "        aside.unlink(missing_ok=True)\n",
        "        pass\n",
        "tests/test_broken_files.py -k half_written",
    ),
    Defence(
        "values out of range are refused",
        "app/params.py",
        "    if not bound.low <= value <= bound.high or (bound.whole and value != int(value)):\n"
        "        return expected\n",
        "",
        "tests/test_bad_input.py -k any_value",
    ),
    Defence(
        "half characters are refused",
        "lantern/models/text.py",
        "if not is_text(prompt):",
        "if False:",
        "tests/test_bad_input.py -k any_prompt",
    ),
    Defence(
        "logits that are no numbers are refused",
        "lantern/decode.py",
        "if math.isnan(figures):",
        "if False:",
        "tests/test_extremes.py -k no_numbers_are_refused",
    ),
    Defence(
        "a drafter's NaN cannot change tokens",
        "lantern/drafting.py",
        ".nan_to_num_(LOG_FLOOR)",
        "",
        "tests/test_extremes.py -k 'candidates or mad'",
    ),
    Defence(
        "NaN does not outlive its image",
        "lantern/graphs.py",
        "                cache.kv.zero_()\n",
        "",
        "tests/test_graphs.py -k outlive",
    ),
    Defence(
        "nothing is drafted past the image",
        "lantern/drafting.py",
        "levels = min(self.shape.depth, self.last - position)",
        "levels = self.shape.depth",
        "tests/test_decode.py",
    ),
    Defence(
        "runs start in the order they came",
        "app/studio.py",
        "self._line.popleft()",
        "self._line.pop()",
        "tests/test_worker.py -k order",
    ),
    Defence(
        "one visitor cannot fill the line",
        "app/studio.py",
        "if len(own) >= MAX_PER_VISITOR and job.limited:",
        "if False:",
        "tests/test_worker.py tests/test_app.py",
    ),
    Defence(
        "the line has an end",
        "app/studio.py",
        "if len(waiting) >= MAX_WAITING:",
        "if False:",
        "tests/test_worker.py tests/test_app.py",
    ),
    Defence(
        "Stop stops within a step",
        "app/jobs.py",
        "        if self.cancel.is_set():\n            raise Stopped\n",
        "        pass\n",
        "tests/test_app.py -k 'stop or tab'",
    ),
    Defence(
        "the next run starts whatever the last one met",
        "app/studio.py",
        "        except Exception as error:\n            self._fail",
        "        except ZeroDivisionError as error:\n            self._fail",
        "tests/test_worker.py",
    ),
    Defence(
        "uploads are limited in size",
        "app/ui.py",
        '        "max_file_size": "5mb",\n',
        "",
        "tests/test_security.py -k 'uploads or opened'",
    ),
    Defence(
        "nobody watches visitors",
        "app/ui.py",
        '"enable_monitoring": False',
        '"enable_monitoring": True',
        "tests/test_security.py -k 'watches or opened'",
    ),
    Defence(
        "only uploads are opened as pictures",
        "app/tabs/codebook.py",
        "        if not is_in_or_equal(path, get_upload_folder()):\n"
        '            raise ValueError("not an upload")\n',
        "",
        "tests/test_codebook.py -k only_uploads",
    ),
    Defence(
        "pictures that come back are small",
        "app/payload.py",
        "if max(image.size) > MAX_SIDE:",
        "if False:",
        "tests/test_payload.py",
    ),
    Defence(
        "a terminated app cleans up",
        "app.py",
        "    signal.signal(signal.SIGTERM, signal.default_int_handler)\n",
        "",
        "tests/test_lifecycle.py -k terminated",
    ),
    Defence(
        "prompts are not logged",
        "app/jobs.py",
        'if job.params and os.environ.get("LANTERN_LOG_PROMPTS"):',
        "if job.params:",
        "tests/test_lifecycle.py -k line_of_json",
    ),
    Defence(
        "a model that does not load is said, not fatal",
        "app/studio.py",
        "        except LOAD_ERRORS as error:\n            self.problem",
        "        except ZeroDivisionError as error:\n            self.problem",
        "tests/browser/test_no_model.py",
    ),
    Defence(
        "a GPU that is not lent is a sentence",
        "app/zerogpu.py",
        "            reason = refusal(error)\n",
        "            reason = None\n",
        "tests/test_zerogpu.py -k quota",
    ),
    Defence(
        "Stop reaches the process that borrows a GPU",
        "app/zerogpu.py",
        "if job.cancel.is_set() and not job.over:",
        "if False:",
        "tests/test_zerogpu.py -k fork",
    ),
    Defence(
        "a page under a sub-path finds its parts",
        "tests/browser/test_proxy.py",
        'GRADIO_ROOT_PATH="/demo", ',
        "",
        "tests/browser/test_proxy.py",
    ),
]


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        files = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
        for name in filter(None, files):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
        print("| promise | defence in | without it fails |\n|---|---|---|", flush=True)
        for defence in DEFENCES:
            if not any(w in defence.promise + defence.file for w in sys.argv[1:] or [""]):
                continue
            file = copy / defence.file
            whole = file.read_text()
            assert defence.old in whole, f"{defence.file} has no {defence.old!r} any more"
            file.write_text(whole.replace(defence.old, defence.new))
            command = f"{sys.executable} -m pytest -q -x {defence.test}"
            done = subprocess.run(command, shell=True, cwd=copy, capture_output=True, text=True)
            file.write_text(whole)
            noticed = done.returncode == 1
            missed += not noticed
            test = defence.test.replace("tests/", "")
            verdict = f"`{test}`" if noticed else f"NOTHING (`{test}` exit {done.returncode})"
            print(f"| {defence.promise} | `{defence.file}` | {verdict} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
