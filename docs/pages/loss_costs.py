"""The page of what the losses cost."""

from __future__ import annotations

from pages.places import committed


def loss_costs_page() -> str:
    """What each loss costs, from the committed rows."""
    document = committed("losses-cuda")
    machine = document["machine"]
    lines = [
        "# What the losses cost",
        "",
        f"Measured by `{document['command']}` on one {machine['device']} (torch "
        f"{machine['torch']}, Python {machine['python']}): forward and backward, microseconds a "
        "call, the best of several rounds in which all contenders take turns.",
        "",
        "- The *bare* formula is what one writes down from the paper, without checks, filters,",
        "  class maps or ignored samples, under `torch.compile`.",
        "- *Eager* is the loss as it comes; *compiled* is after `term.compile()`.",
        "- Calls of this size are bound by how fast the host launches kernels, which varies from run",
        "  to run. *On the device* is the time of a replayed CUDA graph: the device's work alone.",
        "- *Memory* is the peak of what a call allocates, gradient included, in units of the logits",
        "  that get a gradient. RACT compares all pairs of a batch, and MUSCLE is measured without a",
        "  control.",
        "",
        _costs_in_words(document["rows"]),
        "",
        "| loss | logits | bare, compiled | eager | compiled | eager / bare | compiled / bare "
        "| on the device: bare | compiled | ratio | memory: eager | compiled |",
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
    """What the table says, with its own numbers."""
    times = [(row["microseconds"], row["captured"]) for row in rows]
    compiled = max(t["ours compiled"] / t["bare compiled"] for t, _ in times)
    on_device = max(d["ours compiled"] / d["bare compiled"] for _, d in times)
    eager = max(t["ours"] / t["bare compiled"] for t, _ in times)
    many = {
        row["loss"]: row for row in rows if row["classes"] > 10_000 and row["dtype"] == "float32"
    }
    top, full = many["ldi"], many["ldi-all"]
    return (
        f"Compiled, a loss takes at most {compiled:.2f} times its compiled bare formula "
        f"({on_device:.2f} times on the device). Eager, it takes up to {eager:.1f} times as long, because "
        "each of its small steps is a kernel of its own. With "
        f"{top['classes']:,} classes the ten highest logits (`ldi`) need {top['peak']['ours']:.1f} "
        f"times the logits in memory, and all of them (`ldi-all`) {full['peak']['ours']:.1f} times; "
        f"on the device they take {top['captured']['ours compiled']:.0f} µs against "
        f"{full['captured']['ours compiled']:.0f} µs compiled, and {top['captured']['bare compiled']:.0f} µs with "
        "torch's own `topk`. Finding the highest logits reads them all, which is most of what the "
        "full form does: on this device the top-K form saves memory, and no time."
    )
