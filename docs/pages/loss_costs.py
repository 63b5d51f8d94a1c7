"""The page about the time and memory of the losses."""

from __future__ import annotations

from pages.places import committed


def loss_costs_page() -> str:
    """Return the page, from the committed rows."""
    document = committed("losses-cuda")
    machine = document["machine"]
    lines = [
        "# What the losses cost",
        "",
        f"Measured by `{document['command']}` on one {machine['device']} (torch "
        f"{machine['torch']}, Python {machine['python']}): forward and backward, in microseconds "
        "per call. Times are the best of several rounds in which all versions take turns.",
        "",
        "- *Plain* is the formula of the paper, without checks, filters, class maps or ignored samples,",
        "  under `torch.compile`.",
        "- *Eager* is the loss without compilation; *compiled* is the loss after `term.compile()`.",
        "- The time of such small calls depends on how fast the host launches kernels, which varies from run",
        "  to run. *On the device* is the time of a replayed CUDA graph, that is, of the device's work only.",
        "- *Memory* is the peak that a call allocates, including the gradient, divided by the size of the logits",
        "  that get a gradient. RACT compares all pairs of a batch, and MUSCLE is measured without a",
        "  control.",
        "",
        _costs_in_words(document["rows"]),
        "",
        "| loss | logits | plain, compiled | eager | compiled | eager / plain | compiled / plain "
        "| on the device: plain | compiled | ratio | memory: eager | compiled |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        times, device, peak = row["microseconds"], row["captured"], row["peak"]
        bare, fused = times["bare compiled"], device["bare compiled"]
        dtype = row["dtype"]
        lines.append(
            f"| {row['loss']} | {row['samples']:,} x {row['classes']:,} {dtype} | {bare:.0f} "
            f"| {times['ours']:.0f} | {times['ours compiled']:.0f} | {times['ours'] / bare:.2f} "
            f"| {times['ours compiled'] / bare:.2f} | {fused:.0f} | {device['ours compiled']:.0f} "
            f"| {device['ours compiled'] / fused:.2f} | {peak['ours']:.1f} "
            f"| {peak['ours compiled']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _costs_in_words(rows: list[dict]) -> str:
    """Describe the table in words, with computed numbers."""
    times = [(row["microseconds"], row["captured"]) for row in rows]
    compiled = max(t["ours compiled"] / t["bare compiled"] for t, _ in times)
    on_device = max(d["ours compiled"] / d["bare compiled"] for _, d in times)
    eager = max(t["ours"] / t["bare compiled"] for t, _ in times)
    many = {
        row["loss"]: row for row in rows if row["classes"] > 10_000 and row["dtype"] == "float32"
    }
    top, full = many["ldi"], many["ldi-all"]
    return (
        f"Compiled, a loss takes at most {compiled:.2f} times as long as the compiled plain formula "
        f"({on_device:.2f} times on the device). Eager, it takes up to {eager:.1f} times as long, because "
        "each of its small steps is a separate kernel. With "
        f"{top['classes']:,} classes, the loss on the ten highest logits (`ldi`) needs {top['peak']['ours']:.1f} "
        f"times the memory of the logits, and the loss on all logits (`ldi-all`) {full['peak']['ours']:.1f} times. "
        f"On the device they take {top['captured']['ours compiled']:.0f} µs against "
        f"{full['captured']['ours compiled']:.0f} µs compiled, and {top['captured']['bare compiled']:.0f} µs with "
        "torch's `topk`. Finding the highest logits reads all of them, which is most of the work of the "
        "full form. So on this device the top-K form saves memory, but no time."
    )
