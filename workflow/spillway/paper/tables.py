"""Rows that figures draw: the requests that count, by arm."""

import pandas as pd


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    """The requests that count: measured ones, not warm-up, that succeeded."""
    return rows[(rows["phase"] == "measured") & (rows["outcome"] == "ok")]


def by_arm(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Arm -> its rows, in the order of the table; an experiment that compares no arms has one, without a name."""
    if "arm" not in rows.columns:
        return {"": rows}
    return {str(arm): part for arm, part in rows.groupby("arm", sort=False)}
