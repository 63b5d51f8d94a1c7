"""The page of what a step of an ensemble and of its student costs."""

from __future__ import annotations

from pages.places import committed, is_committed

NETS = {
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "resnet18": "ResNet-18, 64 channels wide",
    "vit": "a small ViT",
    "mlp": "a perceptron of the size of MNIST-1D",
}
# What is to be known of a net beside its name.
OF_NETS = {
    "mlp": " It has two hidden layers of 100 (40-100-100-10, as MNIST-1D has it). "
    "[Whole runs on MNIST-1D](cheaper.md#mnist-1d) cost other multiples: they are of another net, with the start of every run and what "
    "it measures after its epochs, on a machine with other work.",
}
WAYS = {
    "plain": "one plain training",
    "published": "as published code does it: fp32, one by one, teachers with gradients on",
    "loop": "straightforward: bf16, one by one, teachers without gradients",
    "one by one": "one by one, compiled in parts, steps replayed",
    "fused": "members and teachers as one network each, steps replayed",
    "fused, one order": "the same, all members see the same batches",
    "fused, parts": "as one network each, compiled in parts, steps replayed",
    "fused, streams": "the same, members as two networks on two streams",
    "apart, streams": "four members at a time, and all teachers, with a stream each",
    "fused, stored views": "as one network, compiled in parts; the student looks answers up",
    "fused, streams, stored views": "the same, members as two networks on two streams",
    "apart, streams, stored views": "four members at a time; the student looks answers up",
    "side by side": "a member a core, each in a process",
}
# On a CPU all is float32, and no step is replayed: there the same ways are called what they are.
ON_CPU = {
    "published": "as published code does it: one by one, teachers with gradients on",
    "loop": "straightforward: one by one, teachers without gradients",
    "fused": "members and teachers as one network each",
}


def on_a_gpu() -> tuple[str, str]:
    """The nets whose ELODI with eight members is cheapest and dearest, each with its price.

    Of every net the best way that asks the members at every step: nothing is given up.
    """
    rows = committed("ensembles")["rows"]
    price: dict[str, float] = {}
    for row in rows:
        if row["way"] in ("one by one", "fused, parts", "apart, streams") and "problem" not in row:
            price[row["net"]] = min(row["trainings"], price.get(row["net"], row["trainings"]))
    least, most = min(price, key=price.__getitem__), max(price, key=price.__getitem__)
    return f"{price[least]:.1f} ({NETS[least]})", f"{price[most]:.1f} ({NETS[most]})"


def ensembles_page() -> str:
    """What an ensemble and its student cost a step, from the committed rows."""
    documents = [committed(name) for name in ("ensembles", "ensembles_cpu") if is_committed(name)]
    lines = [
        "# Ensembles in plain trainings",
        "",
        "ELODI with eight members is nine trainings, and eight forward passes at every step of the student: eleven to "
        "twelve plain trainings if it is written down as it is, and one and a half to three times that as published code does it. "
        "This is what a step costs in each way. Only time is measured here, on random images; what cheaper ways give up "
        "is on [another page](cheaper.md).",
        "",
        "A member's time is that of a step of all of them over eight, a student's that of its step with its teachers. "
        "*Trainings* is eight members' steps and one student's, over a step of a plain eager training of the same net, on a GPU in "
        "bf16. What comes before the first step (making the networks, proving that they are the same, measuring kernels, "
        "compiling) is not in it: 10 to 50 seconds on a GPU, and less for a way whose kernels an earlier row had compiled. Where a student looks answers up, five "
        "views of every sample were answered before, and their price is in the student's time.",
    ]
    for document in documents:
        nets = dict.fromkeys(row["net"] for row in document["rows"])
        first = document["rows"][0]
        lines += [
            "",
            f"Measured by `{document['command']}` on {_device(first)}, torch {first['torch']}."
            + (f" {document['note']}" if "note" in document else "")
            + (" There all is float32, and no steps are replayed." if _is_cpu(first) else ""),
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
        f"Batches of {plain['batch']}, {plain['members']} members, {plain['epochs']} epochs. A step of a plain training "
        f"takes {unit:.2f} ms.{OF_NETS.get(net, '')}",
        "",
        "| | a member, ms | the student, ms | trainings |",
        "|---|---:|---:|---:|",
    ]
    told = WAYS | (ON_CPU if _is_cpu(plain) else {})
    for row in rows:
        if row["way"] not in told or row["way"] == "plain":  # not in `told`: since removed
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
    """The same steps on other days, each beside the plain step of its own day."""
    found: dict[tuple[str, str], list[dict]] = {}
    for row in [*document["repeated"], *_with_unit(document["rows"])]:
        found.setdefault((row["net"], row["way"]), []).append(row)
    lines = [
        "## When it is repeated",
        "",
        "The same steps on several machines of the same kind. What is replayed takes as long everywhere, to a hundredth or "
        "two. The plain step, which is the unit, does not: the host starts each of its kernels, and hosts differ, so that "
        "the same milliseconds are more or fewer trainings.",
        "",
        "| | | a plain step, ms | a member, ms | the student, ms | trainings |",
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
    """Rows beside the plain step that they are held against."""
    units = {r["net"]: r["member_step_ms"] * r["members"] for r in rows if r["way"] == "plain"}
    return [{**row, "plain_step_ms": units[row["net"]]} for row in rows if row["way"] != "plain"]


IN_THE_WAY = [
    "## What is in the way",
    "",
    "By a profile taken by hand: of the 69 ms that a step of eight fused ResNet-56 takes on the GPU above, 34 are convolutions, 25 normalisations, "
    "activations and sums between them, and 9 sums of gradients and copies. The library's grouped convolutions take 2.4 times as long as "
    "reading their inputs and writing their outputs would at 4 TB/s; "
    "a net of so few channels alone takes 16 ms for the step that takes it 9 among eight, "
    "which is why members gain from being one network and a student does not. Two streams gain nothing where members are one network already. The measured "
    "file also has rows of a student that is widened (`wide`), a setting that [was removed](../log.md).",
    "",
    "ResNet-18 at full width fills the GPU alone, and members as one network are slower than one by one (7.2 ms against 6.2). So "
    "`--fuse auto` leaves them apart, four at a time with a stream each, where one computes while another waits for "
    "memory; the rest of what is gained comes from replayed and compiled steps and from stored answers. A ViT's attention is mapped "
    "over the members, which is slower than one by one, too: they are left apart.",
]
