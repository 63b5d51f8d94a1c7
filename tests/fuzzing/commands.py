"""The command line of a case: flags, a policy, pinned samples."""

from __future__ import annotations

import json
from typing import Any

from tests.fuzzing.parts import Case
from tests.fuzzing.twists import Marks
from tests.fuzzing.writing import Field, Sheet, written


class Commands(Marks):
    """Asks for a comparison or a verdict of files that are written."""

    def _with_command(
        self, files: dict[str, bytes], paths: dict[str, str], sound: dict[str, bytes]
    ) -> Case:
        rng = self.rng
        columns = [name for name, *_ in self.groups]
        by = [name for name in columns if self.chance(0.5)]
        if self.chance(0.15):
            by.append(rng.choice(["target"] * 12 + ["label", "id", "nosuch"]))
        by = list(dict.fromkeys(by))
        full = [name for name, values, *_ in self.groups if None not in values]
        full = columns if self.chance(0.1) else full
        cluster = rng.choice(full) if full and self.chance(0.15) else None
        asked = {r: n for r, n in self.names.items() if n != r or self.chance(0.01)}
        controls = [paths["control"]] if "control" in paths else []
        policy, rules, pinned = None, None, None
        if self.chance(0.4):
            rules, pinned = self._rules(columns), self._pinned(files)
            policy = policy_text(rules, pinned)
            files["policy.toml"] = policy.encode()
        arguments = ["gate" if policy else "compare", paths["old"], paths["new"]]
        arguments += ["--policy", "policy.toml"] if policy else []
        arguments += [f"--by={name}" for name in by]
        arguments += [f"--cluster={cluster}"] if cluster else []
        arguments += [f"--control={path}" for path in controls]
        arguments += [f"--{role}={name}" for role, name in asked.items()]
        if self.on_missing == "drop" or self.chance(0.1):
            arguments += [f"--on-missing={self.on_missing}"]
        groups = [*(rule["by"] for rule in rules or [] if "by" in rule), *by]
        task = {
            "old": paths["old"],
            "new": paths["new"],
            "controls": tuple(controls),
            "by": tuple(dict.fromkeys(groups)),
            "cluster": cluster,
            "on_missing": self.on_missing,
            **asked,
        }
        return Case(
            seed=self.seed,
            number=self.number,
            files=files,
            arguments=arguments,
            task=task,
            rules=rules,
            pinned=pinned,
            twist=self.twist,
            sound=sound,
        )

    def _rules(self, columns: list[str]) -> list[dict[str, Any]]:
        rng = self.rng
        rules = []
        for _ in range(rng.choice([1, 1, 2])):
            metric, low, high = rng.choice(
                [
                    ("negative_flip_rate", 0.0, 0.5), ("churn", 0.05, 0.8),
                    ("positive_flip_rate", 0.01, 0.5), ("accuracy_gain", -0.3, 0.3),
                    ("error_rate_new", 0.1, 0.7), ("wrong_to_wrong", 0.01, 0.4),
                ]
            )  # fmt: skip
            limit = rng.choice([round(rng.uniform(low, high), 3), 0.25, 0.5])
            rule: dict[str, Any] = {"metric": metric}
            rule["min" if metric in ("accuracy_gain", "positive_flip_rate") else "max"] = limit
            rule["judge"] = rng.choice(["point", "point", "interval"])
            if columns and self.chance(0.4):
                rule["by"] = rng.choice([*columns, "target"])
                if self.chance(0.3):
                    rule["only"] = [self._group_of(rule["by"])]
                if self.chance(0.3):
                    rule["min_n"] = rng.choice([1, 2, 3])
            rules.append(rule)
        return rules

    def _group_of(self, column: str) -> str:
        """The name of a group as it should be shown, mostly."""
        values = next((v for name, v, *_ in self.groups if name == column), self.targets)
        value = self.rng.choice([*values, "nosuch"])
        if value is None or value == "(missing)":
            return "(missing)" if value is None else '"(missing)"'
        if isinstance(value, bool):
            return str(value).lower()
        return str(int(value)) if value in (0.0, 1.0, 2.0) else str(value)

    def _pinned(self, files: dict[str, bytes]) -> str | None:
        """Perhaps a file of samples that may not flip."""
        rng = self.rng
        ids = [i for i in self.ids if i is not None]
        if not self.chance(0.2) or self.without_ids or not ids:
            return None
        chosen = rng.sample(ids, min(len(ids), rng.choice([1, 2, 5])))
        if self.chance(0.1):
            chosen.append(rng.choice(["not there", None]))
        form = rng.choice(["csv", "tsv", "jsonl", "parquet"])
        notes = [rng.choice(['5" disk', "plain", "two\nlines", None]) for _ in chosen]
        fields = [Field(name="id", cells=chosen), Field(name="why", cells=notes)]
        quirks = {"bare quotes"} if self.chance(0.3) else set()
        sheet = Sheet(format=form, fields=fields, quirks=frozenset(quirks), height=len(chosen))
        name = "pinned." + form
        files[name] = written(sheet, rng)
        return name


def policy_text(rules: list[dict[str, Any]], pinned: str | None) -> str:
    """The policy as TOML."""
    lines = []
    for rule in rules:
        lines.append("[[rule]]")
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in rule.items()]
    if pinned is not None:
        lines += ["[pinned]", f'ids = "{pinned}"']
    return "\n".join(lines) + "\n"
