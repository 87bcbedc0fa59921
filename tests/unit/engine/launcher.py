"""A launcher to be killed: serve a stub until told to go.

python launcher.py BEHAVIOUR NOTES RUN_FOLDER GRACE_S
"""

import sys
import time
from pathlib import Path

from spillway.engine.server import Launch, serve

behaviour, notes, folder, grace_s = sys.argv[1:]
stub = Path(__file__).with_name("stub_server.py")
launch = Launch(
    [sys.executable, "-S", str(stub), behaviour, notes], {}, "stub", range(4, 100), 2, 50, stop_grace_s=float(grace_s)
)
try:
    with serve(launch, Path(folder), ready_timeout_s=60) as server:
        print(f"ready {server.pid}", flush=True)
        time.sleep(600)
finally:
    print("unwound", flush=True)
