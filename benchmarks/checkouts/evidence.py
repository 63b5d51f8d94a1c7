"""The cases that compare, judge, tabulate and list; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checkouts.case import Case, words

# The two files, and what is said about them.
PAIRS: Mapping[str, str] = {
    "labels": "{in}/text_old_labels.csv {in}/text_new_labels.csv --by site --by weather",
    "lines": "{in}/text_old_labels.jsonl {in}/int_new_labels.jsonl",
    "integers": "{in}/int_old_labels.jsonl {in}/int_new_labels.csv --by target",
    "logits": "{in}/text_old_logits.parquet {in}/text_new_logits.parquet --by site",
    "wide-csv": "{in}/text_old_logits.csv {in}/text_new_logits.csv",
    "probabilities": "{in}/text_old_probabilities.parquet {in}/text_new_probabilities.arrow "
    "--by site",
    "mixed": "{in}/text_old_labels.csv {in}/text_new_probabilities.parquet --by user",
    "arrays": "{in}/int_old_logits.npz {in}/int_new_logits.npz --by weather",
    "noids": "{in}/text_old_noids.npz {in}/text_new_noids.npz --by site",
    "one-noids": "{in}/text_old_noids.npz {in}/text_new_logits.npz",
    "shuffled": "{in}/text_old_logits.parquet {in}/text_shuffled.parquet --by site",
    "shuffled-integers": "{in}/int_old_logits.csv {in}/int_shuffled.parquet",
    "shuffled-labels": "{in}/int_old_labels.csv {in}/int_shuffled.csv --by weather",
    "clusters": "{in}/text_old_labels.csv {in}/text_new_labels.csv --cluster user --by site",
    "clusters-scores": "{in}/text_old_logits.npz {in}/text_new_logits.npz --cluster user",
    "control": "{in}/text_old_labels.csv {in}/text_new_labels.csv "
    "--control {in}/text_c1_labels.csv",
    "controls": "{in}/text_old_logits.npz {in}/text_new_logits.npz "
    "--control {in}/text_c1_labels.csv --control {in}/text_c2_logits.parquet "
    "--control {in}/text_c3_logits.npz --by site",
    "controls-clusters": "{in}/int_old_labels.csv {in}/int_new_labels.csv --cluster user "
    "--control {in}/int_c1_labels.csv --control {in}/int_c2_labels.csv",
    "growth": "{in}/grown_old.parquet {in}/grown_new.parquet --by target",
    "growth-labels": "{in}/grown_old.csv {in}/grown_new.parquet --by site",
    "missing": "{in}/text_old_labels.csv {in}/text_missing.csv --on-missing drop --by site",
    "missing-scores": "{in}/int_old_logits.parquet {in}/int_missing.parquet --on-missing drop",
    "missing-refused": "{in}/text_old_labels.csv {in}/text_missing.csv",
    "untargeted": "{in}/text_old_untargeted.csv {in}/text_new_untargeted.csv --by site",
    "one-target": "{in}/text_old_untargeted.csv {in}/text_new_labels.csv",
    "partial": "{in}/text_old_partial.parquet {in}/text_new_partial.parquet --by weather",
    "renamed": "{in}/int_old_renamed.tsv {in}/int_new_renamed.tsv --id sample --target truth "
    "--label guess",
    "renamed-unsaid": "{in}/int_old_renamed.tsv {in}/int_new_renamed.tsv",
    "own-labels": "{in}/text_old_own.parquet {in}/text_new_own.parquet --by site",
    "compressed": "{in}/text_old_labels.csv.gz {in}/text_new_labels.csv.gz",
    "far": "{in}/text_old_far.parquet {in}/text_new_far.parquet --exponent 2",
    "null-groups": "{in}/text_old_nulls.parquet {in}/text_new_nulls.parquet --by site",
    "few": "{in}/few_old_logits.npz {in}/few_new_logits.npz --by site --by target",
    "few-clusters": "{in}/few_old_labels.csv {in}/few_new_labels.csv --cluster user",
    "identical": "{in}/text_old_logits.npz {in}/text_old_logits.npz --by site",
    "dense": "{in}/dense_old.npz {in}/dense_new.npz --by target --control {in}/dense_c1.npz",
    "dense-lists": "{in}/dense_old.parquet {in}/dense_new.jsonl --by target",
    "dense-labels": "{in}/dense_old.csv {in}/dense_new.parquet",
    "confidence": "{in}/text_old_labels.csv {in}/text_new_labels.csv --confidence 0.8 --by site "
    "--correction none",
    "corrected": "{in}/text_old_logits.npz {in}/text_new_logits.npz --by user "
    "--correction benjamini-hochberg --exponent 0.5",
}
QUICK = (
    *("labels", "logits", "arrays", "noids", "shuffled", "clusters", "controls", "growth"),
    *("missing", "partial", "dense-lists"),
)
WRITTEN = "--json out.json --markdown out.md --html out.html --flips flips.csv"
POLICIES = ("pass", "fail", "near", "groups", "point", "pinned", "control", "many")
WRONG_POLICIES = ("metric", "toml", "key", "none", "limit", "pinned")
WRONG = (
    *("noid", "nolabel", "twice", "other_targets", "never_right", "other_ids", "no_rows", "nan"),
    *("sums", "empty", "ragged"),
)
WRONG_FILES = ("text.parquet", "object.jsonl", "suffix.doc", "array.npz", "nowhere.csv")


def evidence_cases(*, spark: bool) -> Iterator[Case]:
    """Every kind of input with every kind of output, and what is refused."""
    for name, pair in PAIRS.items():
        yield _case(f"compare-{name}", f"compare {pair} {WRITTEN}", quick=name in QUICK)
    yield from _outputs()
    yield from _gates()
    yield from _refusals()
    yield from _tables()
    if spark:
        for name in ("controls", "missing"):
            command = f"compare {PAIRS[name]} --engine spark --json out.json --markdown out.md"
            yield Case(part="spark", name=name, commands=(words(command),), cold=True)


def _outputs() -> Iterator[Case]:
    pair = "{in}/text_old_logits.parquet {in}/text_new_logits.parquet"
    for number, output in enumerate(
        ("--json -", "--markdown -", "--flips -", "--html -", "--json - --markdown -"), start=1
    ):
        yield _case(f"output-{number}", f"compare {pair} {output}", quick=number == 1)
    suffixes = ("tsv", "jsonl", "parquet", "arrow", "csv.gz")
    commands = [f"compare {pair} --flips flips.{suffix}" for suffix in (*suffixes, "doc")]
    yield _case("flips", *commands)
    yield _case("texts", f"compare {pair} --html out.html --samples {{in}}/samples.csv")
    images = "--samples {in}/samples.npz --samples-budget 40kB"
    yield _case("images", f"compare {pair} --html out.html --by site {images}")
    yield _case("samples-alone", f"compare {pair} --samples {{in}}/samples.csv")
    narrow = {"COLUMNS": "60"}
    yield _case("narrow", f"compare {PAIRS['controls']}", environment=narrow)
    yield _case("plain", f"compare {PAIRS['logits']}", environment={"PYTHONIOENCODING": "ascii"})


def _gates() -> Iterator[Case]:
    pairs = {
        "labels": "{in}/text_old_labels.csv {in}/text_new_labels.csv",
        "scores": "{in}/text_old_logits.npz {in}/text_new_logits.npz",
    }
    controls = "--control {in}/text_c1_labels.csv --control {in}/text_c2_labels.csv"
    for policy in POLICIES:
        more = controls if policy == "control" else ""
        for name, pair in pairs.items():
            command = f"gate {pair} --policy {{in}}/{policy}.toml {more} {WRITTEN}"
            quick = policy in ("groups", "near") and name == "labels"
            yield _case(f"gate-{policy}-{name}", command, quick=quick)
    pair = pairs["labels"]
    yield _case("gate-clusters", f"gate {pair} --policy {{in}}/many.toml --cluster user {WRITTEN}")
    yield _case("gate-by", f"gate {pair} --policy {{in}}/near.toml --by site --json -")
    yield _case("gate-control-missing", f"gate {pair} --policy {{in}}/control.toml")
    few = "{in}/few_old_labels.csv {in}/few_new_labels.csv"
    yield _case("gate-few", f"gate {few} --policy {{in}}/groups.toml {WRITTEN}")
    yield _case(
        "gate-same",
        "gate {in}/text_old_labels.csv {in}/text_old_labels.csv "
        "--policy {in}/many.toml --json out.json",
    )
    never = "{in}/bad_never_right.csv {in}/bad_good.csv"
    yield _case("gate-never-right", f"gate {never} --policy {{in}}/pass.toml")
    wrong = [f"gate {pair} --policy {{in}}/bad_{name}.toml" for name in WRONG_POLICIES]
    yield _case("gate-wrong", *wrong, f"gate {pair} --policy nowhere.toml", f"gate {pair}")


def _refusals() -> Iterator[Case]:
    good = "{in}/bad_good.csv"
    yield _case("wrong-tables", *(f"compare {good} {{in}}/bad_{name}.csv" for name in WRONG))
    yield _case("wrong-files", *(f"compare {{in}}/bad_{name} {good}" for name in WRONG_FILES))
    pair = "{in}/text_old_labels.csv {in}/text_new_labels.csv"
    yield _case(
        "wrong-flags",
        *(
            f"compare {pair} {flags}"
            for flags in (
                *("--by nothing", "--cluster nothing", "--target nothing", "--id site"),
                *("--confidence 2", "--on-missing ignore", "--engine gpu", "--flips flips.doc"),
                *("--json nowhere/out.json", "--json out.json --markdown out.json", "--exponent 0"),
                *(
                    "--control {in}/bad_good.csv",
                    "--by ''",
                    "--nothing",
                    "--html out.html --json -",
                ),
            )
        ),
        quick=True,
    )
    yield _case("wrong-commands", "compare", "nothing", "gate --policy", "--version", "")


def _tables() -> Iterator[Case]:
    scores = "{in}/text_old_logits.npz {in}/text_new_logits.parquet {in}/text_c1_logits.csv"
    labels = "{in}/int_old_labels.csv {in}/int_new_labels.jsonl {in}/int_c1_labels.csv"
    yield _case("matrix", f"matrix {scores} --json out.json", quick=True)
    yield _case("matrix-labels", f"matrix {labels} --json -", f"matrix {labels}")
    missing = "matrix {in}/text_old_labels.csv {in}/text_missing.csv"
    yield _case("matrix-missing", missing, f"{missing} --on-missing drop --json out.json")
    yield _case("matrix-plot", f"matrix {labels} --plot out.svg", "matrix {in}/bad_good.csv")
    for kind in ("npz", "parquet", "csv"):
        yield _case(f"ensemble-{kind}", f"ensemble {scores} --out out.{kind}", quick=kind == "npz")
    probabilities = "{in}/text_old_probabilities.parquet {in}/text_new_probabilities.arrow"
    yield _case("ensemble-probabilities", f"ensemble {probabilities} --out out.npz")
    yield _case("ensemble-mixed", f"ensemble {scores} {probabilities} --out out.npz")
    yield _case("ensemble-labels", f"ensemble {labels} --out out.csv")
    grown = "{in}/grown_old.parquet {in}/grown_new.parquet"
    yield _case("ensemble-grown", f"ensemble {grown} --out out.parquet")
    report = "report {in}/text_new_logits.npz {in}/text_c1_logits.parquet"
    old = "--old {in}/text_old_logits.npz --out out.html"
    yield _case("report", f"{report} {old} --by site --policy {{in}}/near.toml")
    yield _case("report-wrong", f"{report} --out out.html")
    yield _case("lists", "metrics", "metrics --json", "methods", "methods --json", quick=True)
    yield _case("methods", *(f"methods {name}" for name in ("none", "fd-kl", "bct", "nothing")))
    commands = ("compare", "gate", "report", "matrix", "ensemble", "train", "predict", "study")
    yield _case("helps", "--help", *(f"{name} --help" for name in commands))


def _case(
    name: str,
    *commands: str,
    quick: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Case:
    return Case(
        part="evidence",
        name=name,
        commands=tuple(words(command) for command in commands),
        quick=quick,
        environment=dict(environment or {}),
    )
