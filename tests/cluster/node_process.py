"""One ClickHouse server: the server object of the chdb-core wheel, made to listen on HTTP and TCP.

Run by the supervisor in the node's own folder, which holds ``config.xml``:

    python -m tests.cluster.node_process PARENT_PID CHDB_FOLDER INTERSERVER_HOST INTERSERVER_PORT

The file ``ready`` appears in that folder once the server has its interserver address; its HTTP port may need a
moment longer. The process ends with status 3 when the address can't be set, and is useless for tests then.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import ModuleType

from tests.cluster.die_with_parent import die_with_parent
from tests.cluster.interserver_address import ContextLayout, layout_of, write_interserver_address

DATA_FOLDER = "clickhouse-data"
READY_FILE = "ready"
HOLD_PIPE = "hold"
ADDRESS_NOT_SET = 3
_CONTEXT_TIMEOUT = 60.0


def extension_file(chdb_folder: Path) -> Path:
    """The shared object inside an installed ``chdb`` package.

    Raises:
        FileNotFoundError: the folder holds none, or several.
    """
    candidates = sorted(chdb_folder.glob("_chdb*.so"))
    if len(candidates) != 1:
        raise FileNotFoundError(f"expected one _chdb*.so in {chdb_folder}, found {len(candidates)}")
    return candidates[0]


def _load_extension(shared_object: Path) -> ModuleType:
    """Load the extension alone: the Python part of the wheel would import pandas and pyarrow for nothing."""
    node_folder = Path.cwd()
    os.chdir(shared_object.parent)  # the extension looks for its helper libraries in the current folder
    try:
        ctypes.CDLL(str(shared_object), mode=sys.getdlopenflags() | os.RTLD_DEEPBIND)
        loader = importlib.machinery.ExtensionFileLoader("_chdb", str(shared_object))
        spec = importlib.util.spec_from_file_location("_chdb", shared_object, loader=loader)
        if spec is None:
            raise ImportError(f"cannot load {shared_object.name}")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    finally:
        os.chdir(node_folder)
    return module


def _set_address(layout: ContextLayout, data_path: str, host: str, port: int) -> None:
    try:
        write_interserver_address(layout, data_path, host, port, timeout=_CONTEXT_TIMEOUT)
    except Exception as error:  # noqa: BLE001 - a thread's exception ends nothing, and this must end the process
        print(f"interserver address not set: {error}", file=sys.stderr, flush=True)
        os._exit(ADDRESS_NOT_SET)
    Path(READY_FILE).write_text(f"{os.getpid()}\n")


def main(arguments: list[str]) -> None:
    parent_pid, chdb_folder, host, port = arguments
    die_with_parent(int(parent_pid))
    shared_object = extension_file(Path(chdb_folder))
    layout = layout_of(shared_object)
    data_path = str(Path.cwd() / DATA_FOLDER)
    hold_pipe = Path.cwd() / HOLD_PIPE
    if not hold_pipe.exists():
        os.mkfifo(hold_pipe)
    server = _load_extension(shared_object)
    threading.Thread(
        target=_set_address, args=(layout, data_path + "/", host, int(port)), daemon=True
    ).start()
    # The server lives as long as the call does, and reading a pipe that nobody writes takes no processor time.
    result = server.query(
        "SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; "
        f"SELECT * FROM file('{hold_pipe}', 'LineAsString', 'line String') FORMAT Null",
        "TSV",
        path=data_path,
    )
    sys.exit(f"the server has stopped: {result}")


if __name__ == "__main__":
    main(sys.argv[1:])
