"""Makes the golden server importable by name, and its process as the load client's tests start it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "load")]
