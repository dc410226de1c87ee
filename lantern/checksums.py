"""SHA256SUMS of a model folder: damage that a file format does not notice, noticed on loading.

The file has the format of the ``sha256sum`` tool, so ``sha256sum -c SHA256SUMS`` checks it too.
``python -m lantern checksums`` writes it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

NAME = "SHA256SUMS"


def verify(folder: Path) -> None:
    """Compare the files of ``folder`` with its sums. ValueError names the first that differs; one
    that is missing passes, since its reader reports it."""
    for name, digest in read(folder).items():
        file = folder / name
        if file.is_file() and _sha256(file) != digest:
            raise ValueError(
                f"{file} is not the file that was published (its checksum differs); restore it "
                "with git checkout or download it again."
            )


def read(folder: Path) -> dict[str, str]:
    """Checksums by path relative to ``folder``, {} if there are none; ValueError if the file is no
    list of checksums."""
    file = folder / NAME
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read ({error}); restore it.") from None
    sums = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise ValueError(f"{file} is damaged ({line[:80]!r}); restore it.")
        sums[name] = digest
    return sums


def write(folder: Path) -> None:
    """Sums of everything a model is loaded from: each part's JSON and weights."""
    files = [
        file
        for pattern in ("*.json", "*/*.json", "*/*.safetensors")
        for file in sorted(folder.glob(pattern))
        if not file.name.startswith("neighbours-")
    ]
    lines = [f"{_sha256(file)}  {file.relative_to(folder).as_posix()}\n" for file in files]
    aside = folder / f"{NAME}.{os.getpid()}.new"
    aside.write_text("".join(lines), encoding="ascii")
    os.replace(aside, folder / NAME)


def refresh(folder: Path) -> None:
    """Write the sums anew where there are some: after a part was trained into ``folder``."""
    if (folder / NAME).exists():
        write(folder)


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
