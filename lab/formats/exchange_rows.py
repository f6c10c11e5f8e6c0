"""Published exchanges of tokens (DeepEP, TensorRT-LLM's all-to-all) in the columns of aiconfigurator's samples.

A row of DeepEP has two kernels. What is compared is the transmission: what a rank waits in `notify` for the others is
theirs, and a simulated step has its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

GPUS_PER_NODE = 8  # of DeepEP's runs; the rows do not say it
UNSAID = 1  # SMs of kernels whose rows do not say them
WAYS = ("dispatch", "combine")


def named(rows: pd.DataFrame) -> pd.DataFrame | None:
    """Rows of a published file in columns of our own, a kernel a row; None if it is no such file.

    Columns: system, source or framework and version as they were, `dtype`, `kernel_source`, `op_name`, `ranks`,
    `num_tokens`, `hidden_size`, `topk`, `num_experts`, `sms`, `latency` in ms.
    """
    if "node_num" in rows and "num_topk" in rows:
        return pd.concat(list(_deepep(rows)), ignore_index=True)
    if "moe_ep_size" in rows and "op_name" in rows and "inter_size" not in rows:
        return _all_to_all(rows)
    return None


def _deepep(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Dispatch and combine of every row; runs over several nodes are libraries of their own (another release)."""
    nodes = rows["node_num"].astype(str)
    for way in WAYS:
        normal = f"{way}_transmit_us" in rows
        microseconds = rows[f"{way}_transmit_us" if normal else f"{way}_avg_t_us"]
        yield rows.assign(
            dtype="bfloat16",
            kernel_source="deepep" if normal else "deepep low latency",
            op_name=f"{way} " + nodes + " nodes",
            ranks=GPUS_PER_NODE * rows["node_num"],
            num_tokens=rows["num_token"],
            topk=rows["num_topk"],
            sms=rows[f"{way}_sms"] if normal else UNSAID,
            latency=microseconds * 1e-3,
        )


def _all_to_all(rows: pd.DataFrame) -> pd.DataFrame:
    """TensorRT-LLM's, among GPUs of one NVLink domain."""
    return rows.assign(dtype=rows["moe_dtype"], ranks=rows["moe_ep_size"], sms=UNSAID)
