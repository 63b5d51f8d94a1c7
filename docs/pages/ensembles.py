"""The page about the time of a step of an ensemble and of its student."""

from __future__ import annotations

from pages.places import committed, is_committed

NETS = {
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "resnet18": "ResNet-18, 64 channels wide",
    "vit": "a small ViT",
    "mlp": "a perceptron of the size of MNIST-1D",
}
# Notes about a network.
OF_NETS = {
    "mlp": " It has two hidden layers of 100 units (40-100-100-10, the sizes of MNIST-1D). "
    "[Whole runs on MNIST-1D](cheaper.md#mnist-1d) have other ratios: they use another network, and include the start of every run "
    "and the measurements after its epochs, on a machine with other work.",
}
WAYS = {
    "plain": "one plain training run",
    "published": "as in published code: fp32, one by one, teachers with gradients",
    "loop": "simple loop: bf16, one by one, teachers without gradients",
    "one by one": "one by one, compiled in parts, replayed steps",
    "fused": "members as one network, teachers as one network, replayed steps",
    "fused, one order": "the same; all members see the same batches",
    "fused, parts": "members as one network, teachers as one network, compiled in parts, replayed steps",
    "fused, streams": "the same; members as two networks on two streams",
    "apart, streams": "four members at a time, one stream per member; one stream per teacher",
    "fused, stored views": "members as one network, compiled in parts; the student uses stored views",
    "fused, streams, stored views": "the same; members as two networks on two streams",
    "apart, streams, stored views": "four members at a time; the student uses stored views",
    "side by side": "in parallel: one member per core, each in a process",
}
# On a CPU everything is float32 and no step is replayed, so these ways have other names there.
ON_CPU = {
    "published": "as in published code: one by one, teachers with gradients",
    "loop": "simple loop: one by one, teachers without gradients",
    "fused": "members as one network, teachers as one network",
}


def on_a_gpu() -> tuple[str, str]:
    """Return the networks for which ELODI with eight members is cheapest and most expensive, with the cost.

    Uses the fastest way per network that runs the members at every step, so that nothing is given up.
    """
    rows = committed("ensembles")["rows"]
    price: dict[str, float] = {}
    for row in rows:
        if row["way"] in ("one by one", "fused, parts", "apart, streams") and "problem" not in row:
            price[row["net"]] = min(row["trainings"], price.get(row["net"], row["trainings"]))
    least, most = min(price, key=price.__getitem__), max(price, key=price.__getitem__)
    return f"{price[least]:.1f} ({NETS[least]})", f"{price[most]:.1f} ({NETS[most]})"


def ensembles_page() -> str:
    """Return the page, from the committed rows."""
    documents = [committed(name) for name in ("ensembles", "ensembles_cpu") if is_committed(name)]
    lines = [
        "# The cost of ensembles",
        "",
        "ELODI with eight members trains nine models, and takes eight forward passes at every step of the student. In a simple "
        "implementation this takes as long as 11 to 12 plain training runs; published code takes 1.5 to 3 times as long as "
        "that. This page shows the time of a step for each way to implement it. Only time is measured, on random images. [Another "
        "page](cheaper.md) shows what cheaper ways give up.",
        "",
        "- *Per member* is the time of a step of all eight members, divided by eight.",
        "- *Student* is the time of a step of the student with its teachers. With stored views, it includes the time to compute "
        "five views of every sample.",
        "- *Training runs* is the time of eight members' steps and one student's step, divided by a step of plain eager training of "
        "the same network (bf16 on a GPU).",
        "- The time before the first step is not included: building the networks, proving that they are equal, measuring "
        "kernels, compiling. It takes 10 to 50 seconds on a GPU, and less if an earlier row has compiled the kernels.",
    ]
    for document in documents:
        nets = dict.fromkeys(row["net"] for row in document["rows"])
        first = document["rows"][0]
        lines += [
            "",
            f"Measured by `{document['command']}` on {_device(first)}, torch {first['torch']}."
            + (f" {document['note']}" if "note" in document else "")
            + (
                " There, everything is float32 and no steps are replayed." if _is_cpu(first) else ""
            ),
        ]
        for net in nets:
            rows = [row for row in document["rows"] if row["net"] == net]
            lines += ["", *_ensembles_section(net, rows)]
        if "repeated" in document:
            lines += ["", *_repeated_section(document)]
    lines += ["", *IN_THE_WAY]
    return "\n".join(lines) + "\n"


def _is_cpu(row: dict) -> bool:
    return "CPU" in row["device"]


def _device(row: dict) -> str:
    told = row["device"]
    return f"{row['threads']} cores ({told})" if _is_cpu(row) else f"one {told}"


def _ensembles_section(net: str, rows: list[dict]) -> list[str]:
    plain = next(row for row in rows if row["way"] == "plain")
    unit = plain["member_step_ms"] * plain["members"]
    lines = [
        f"## {NETS[net][0].upper()}{NETS[net][1:]}",
        "",
        f"Batches of {plain['batch']}, {plain['members']} members, {plain['epochs']} epochs. A step of plain training "
        f"takes {unit:.2f} ms.{OF_NETS.get(net, '')}",
        "",
        "| way | per member, ms | student, ms | training runs |",
        "|---|---:|---:|---:|",
    ]
    told = WAYS | (ON_CPU if _is_cpu(plain) else {})
    for row in rows:
        if row["way"] not in told or row["way"] == "plain":  # not in `told`: removed since
            continue
        if "problem" in row:
            lines.append(f"| {told[row['way']]} | — | — | — |")
            continue
        lines.append(
            f"| {told[row['way']]} | {row['member_step_ms']:.2f} | {row['student_step_ms']:.2f} | "
            f"{row['trainings']:.1f} |"
        )
    return lines


def _repeated_section(document: dict) -> list[str]:
    """The same steps on other days, each with the plain step of the same day."""
    found: dict[tuple[str, str], list[dict]] = {}
    for row in [*document["repeated"], *_with_unit(document["rows"])]:
        found.setdefault((row["net"], row["way"]), []).append(row)
    lines = [
        "## Repeated measurements",
        "",
        "These are the same steps on several machines of the same kind. The time of replayed steps differs by 1 or 2 % between "
        "machines. The time of the plain step, which is the unit, differs more, because the host starts each of its kernels. So "
        "the same milliseconds can be more or fewer training runs.",
        "",
        "| network | way | plain step, ms | per member, ms | student, ms | training runs |",
        "|---|---|---|---|---|---|",
    ]
    for (net, way), rows in found.items():
        if len(rows) > 1 and way in WAYS:
            cells = [
                ", ".join(f"{row[name]:.{places}f}" for row in rows)
                for name, places in (
                    ("plain_step_ms", 1),
                    ("member_step_ms", 2),
                    ("student_step_ms", 1),
                    ("trainings", 1),
                )
            ]
            lines.append(f"| {NETS[net]} | {WAYS[way]} | {' | '.join(cells)} |")
    return lines


def _with_unit(rows: list[dict]) -> list[dict]:
    """Add to each row the time of the plain step of its network."""
    units = {r["net"]: r["member_step_ms"] * r["members"] for r in rows if r["way"] == "plain"}
    return [{**row, "plain_step_ms": units[row["net"]]} for row in rows if row["way"] != "plain"]


IN_THE_WAY = [
    "## What limits the speed",
    "",
    "According to a profile taken by hand, a step of eight fused ResNet-56 takes 69 ms on the GPU above: 34 ms for convolutions, 25 ms "
    "for normalisations, activations and sums between them, and 9 ms for sums of gradients and copies. The library's grouped "
    "convolutions take 2.4 times as long as reading their inputs and writing their outputs would take at 4 TB/s. A step of such a "
    "narrow network takes 16 ms alone and 9 ms as one of eight. So members are faster as one network, and a single student is not. "
    "Two streams do not help if members are already one network. The measured file also has rows of a widened student (`wide`), a "
    "setting that [was removed](../log.md).",
    "",
    "A ResNet-18 of full width fills the GPU alone. Members as one network are slower than one by one (7.2 ms against 6.2 ms). So "
    "`--fuse auto` keeps them separate, four at a time with one stream each, so that one computes while another waits for "
    "memory. The rest of the gain comes from replayed and compiled steps and from stored views. The attention of a ViT is mapped "
    "over the members, which is also slower than one by one. So members with attention are kept separate too.",
]
