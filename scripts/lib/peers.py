"""Makes ``.cache/bench``, the environment of what the benchmarks compare with. Does nothing when it is there.

python -m scripts.lib.peers
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
LOCK: Final = CHECKOUT / "requirements" / "bench.txt"


def main() -> None:
    """Bring the environment to its lock. A stamp, written last, says that it is complete."""
    folder = CHECKOUT / ".cache" / "bench"
    stamp = folder / ".lock-installed"
    fingerprint = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == fingerprint:
        return
    uv = str(Path(sys.executable).with_name("uv"))
    pip = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    env = uv_environment(settings, os.environ)
    with timed("installing what the benchmarks compare with"):
        run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], env=env)
        run([uv, "pip", "sync", "--quiet", "--python", str(folder / "bin" / "python"), str(LOCK)], env=env)
    stamp.write_text(fingerprint)


if __name__ == "__main__":
    main()
