"""The fuzzer's own modules can be imported by the tests here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
