"""The section of ELODI's card on its cost, with the measured numbers."""

from __future__ import annotations

from pages.cheaper_ways import measured
from pages.ensembles import on_a_gpu

PRICE = """
### What it costs, and how to pay less

ELODI with m members costs m + 1 training runs, and m forward passes at every step of the student. A forward pass takes
about a third of a training step, so eight members cost nearly 12 training runs if nothing is optimised. On a GPU
with `machine.compile=parts`, flipguard needs between {least} and {most}
training runs, and results differ by rounding only ([step by step](results/ensembles.md)).
The options below lower the cost further. All except `--fuse` change what the student learns from, so compare the result
with the control.

| option | what is saved | what is lost | measured against eight members |
|---|---|---|---|
| `members=4` | half of the members, and of their forward passes | a smaller ensemble varies more from seed to seed. Try this first: the members stay fully trained, and independent of each other | {members} |
| `reuse=4` | the training of four members, in every update | independence: part of the ensemble is that of the previous model | {reuse} |
| [`views=10`](#stored-views), or fewer if there are fewer epochs | all forward passes except `views` per sample, which all students share | new augmentations in every epoch | {views} |
| `--fuse auto`, the default | time on a GPU that a single member does not fill: the members train as one network; on a CPU they train in parallel | nothing, except for rounding | |

NFR is the negative flip rate with respect to an old model that ELODI also trained. Lower is better, for NFR and for error.
MNIST-1D was measured with ten seeds and 100 epochs, CIFAR-100 with three seeds and 20 epochs. Other tasks may differ:
[all measurements](results/cheaper.md).
"""
PAYING_LESS = """

**In a chain of updates**, `reuse=n` takes n members from the ensemble of the run given as `--old`, and trains only the
others.

```console
$ flipguard train --method elodi --set options.members=4 --set recipe.epochs=3 --out runs/v1
$ flipguard train --method elodi --set options.members=4 --set options.reuse=2 --old runs/v1 --seed 2 \\
    --set recipe.epochs=3 --out runs/v2
```

Reused members are not changed. They must have the same classes, but may have the old architecture, and may have been
trained on less data. The student then learns from a partly older ensemble: expect it to stay closer to the old model, and
to gain less from the update. `run.json` lists all members, new ones first, and `reuse` takes the first members of the old
run's list. If at most half of the members are reused, each member serves in at most two updates. The list has relative
paths, so move a run and its members together.
"""
STORED_VIEWS = """
### Stored views

By default, every step of the student runs the whole ensemble on the augmented inputs. With `views=V`, the ensemble is run
V times per sample instead, once for all students. Its logits are stored in `views/`, next to the runs. Epoch e of a student
uses view e % V, augmented as it was for the ensemble, and its steps do not run the ensemble. Without augmentation, as with
texts, one view is enough: the student equals that of an ensemble run at every step, up to the rounding of stored logits.

```console
$ flipguard train --model mlp:hidden=64 --method elodi --set options.members=2 --set options.views=2 \\
    --set recipe.epochs=4 --set recipe.augment=shift-scale-noise --out runs/first
$ flipguard train --model mlp:hidden=64 --method elodi --set options.members=2 --set options.views=2 \\
    --set recipe.epochs=4 --set recipe.augment=shift-scale-noise --set options.alpha=0.5 --out runs/second
```

The second student uses the views of the first. The augmentation's seed belongs to the members, so students with any seed
share the views of the same members, such as those given as `guides`. A table takes 2 bytes per view, sample and class:
8 views take 76 MiB for CIFAR-100 and 19 GiB for ImageNet, or 0.8 GiB with `views_top=20`. The table is written in parts and
checked when it is opened: a killed run continues with it, and a damaged part is computed again.
"""


def elodi_price() -> str:
    """Return the section on ELODI's cost, with the measured numbers."""
    least, most = on_a_gpu()
    price = PRICE.format(
        least=least,
        most=most,
        members=measured("members=4"),
        reuse=measured("reuse=4"),
        views=measured("views=10", "views=5"),
    )
    return price + PAYING_LESS + STORED_VIEWS
