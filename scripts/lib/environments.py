"""Makes an environment beside ``.venv`` for what is never tested against. Does nothing when it is there.

python -m scripts.lib.environments NAME

``bench`` is what the benchmarks compare with; ``older`` is an older ClickHouse. Each is in ``.cache``, from its lock
in ``requirements``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from scripts.lib.bootstrap import run, timed, uv_environment

CHECKOUT: Final = Path(__file__).resolve().parents[2]


def environment(name: str) -> Path:
    """Bring the environment to its lock, and return its folder. A stamp, written last, says that it is complete."""
    folder = CHECKOUT / ".cache" / name
    lock = CHECKOUT / "requirements" / f"{name}.txt"
    stamp = folder / ".lock-installed"
    fingerprint = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == fingerprint:
        return folder
    uv = str(Path(sys.executable).with_name("uv"))
    pip = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    env = uv_environment(settings, os.environ)
    with timed(f"installing requirements/{name}.txt"):
        run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], env=env)
        run([uv, "pip", "sync", "--quiet", "--python", str(folder / "bin" / "python"), str(lock)], env=env)
    stamp.write_text(fingerprint)
    return folder


if __name__ == "__main__":
    environment(sys.argv[1])
