"""What a decode step would take if reading its host experts over the link were all that placement costs.

    line = TPOT with everything in GPU memory + bytes of host experts that a step read / rate of reading host memory in place

The bytes are counted by an arm that counts; other arms with its plan were asked the same and read the same.
"""

import statistics
from collections.abc import Mapping

from spillway.measure.run import Rows
from spillway.measure.tpot import median_tpot_s
from spillway.spec.experiment import OnHost


def link_lines(on: OnHost, tables: Mapping[str, Rows]) -> Rows:
    """Rows of the table `link_line`; none where no arm counts, or none has everything in GPU memory."""
    arms = on.served()
    counting = [name for name, arm in arms.items() if arm.count]
    whole = next((name for name, arm in arms.items() if arm.plan is None and not arm.arguments), None)
    rows: Rows = []
    for cell in tables.get("cells", []) if whole is not None else []:
        if cell.get("arm") not in counting or not cell["decode_steps"]:
            continue
        base_s = median_tpot_s(tables, str(whole), cell["cell"])
        bytes_per_step = cell["host_read_bytes"] / cell["decode_steps"]
        for name in (name for name, arm in arms.items() if arm.plan == arms[cell["arm"]].plan):
            tpot_s = median_tpot_s(tables, name, cell["cell"])
            rates = [row["host_read_bytes_per_s"] for row in tables["arms"] if row["arm"] == name]
            rate = statistics.median([each for each in rates if each is not None] or [0.0])
            if base_s is not None and tpot_s is not None and rate > 0:
                rows.append({
                    "run": cell["run"], "arm": name, "cell": cell["cell"], "step_host_bytes": bytes_per_step,
                    "host_read_bytes_per_s": rate, "in_vram_tpot_s": base_s, "line_s": base_s + bytes_per_step / rate,
                    "tpot_s": tpot_s, "over_line_ratio": tpot_s / (base_s + bytes_per_step / rate),
                })  # fmt: skip
    return rows
