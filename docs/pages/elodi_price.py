"""The part of ELODI's card about its cost, with the measured numbers."""

from __future__ import annotations

from pages.cheaper_ways import measured
from pages.ensembles import on_a_gpu

PRICE = """
### What it costs, and how to pay less

With m members, ELODI trains m + 1 models, and every step of the student takes m forward passes. A forward pass takes
about a third of a training step. So a plain implementation takes about 12 training runs with eight members. On a GPU
flipguard takes {least} to {most}, with `machine.compile=parts`;
the result is equal up to rounding ([times per step](results/ensembles.md)). These options lower the cost further. All of
them except `--fuse` change the target of the student, so compare with a control.

| option | what it saves | what it gives up | measured against eight members |
|---|---|---|---|
| `members=4` | half of the members and of their forward passes | a smaller ensemble varies more from seed to seed. Try this option first: the members are still fully trained and independent | {members} |
| `reuse=4` | the training of four members in every update | part of the ensemble comes from the previous update | {reuse} |
| [`views=10`](#stored-views), or at most as many as there are epochs | all forward passes except ten per sample, which all students share | new augmentations in every epoch | {views} |
| `--fuse auto` (the default) | on a GPU that one member does not fill, members are one network; on a CPU they train in parallel | nothing, up to rounding | |

NFR is the negative flip rate after an old model that ELODI trained too. Higher is worse, for NFR and for error. MNIST-1D
has ten seeds and 100 epochs, CIFAR-100 three seeds and 20 epochs. The numbers on your task will differ:
[all measurements](results/cheaper.md).
"""
PAYING_LESS = """

**In a series of updates**, `reuse=n` takes n members from the ensemble of the `--old` run and trains only the others.

```console
$ flipguard train --method elodi --set options.members=4 --set recipe.epochs=3 --out runs/v1
$ flipguard train --method elodi --set options.members=4 --set options.reuse=2 --old runs/v1 --seed 2 \\
    --set recipe.epochs=3 --out runs/v2
```

Reused members are not changed. They must know the same classes, but they may have the old architecture and may
have seen less data. The student is then pulled to a partly older ensemble. So expect it to stay closer to the old model and to gain
less from new data. `run.json` lists all members, the new ones first, and `reuse` takes the first members of that list. So if at
most half of the members are reused, no member serves in more than two updates. The list has relative paths, so move runs and
their members together.
"""
STORED_VIEWS = """
### Stored views

Normally the whole ensemble runs on the student's augmented inputs at every step. With `views=V` the ensemble runs only V
times per sample, once for all students. Its predictions are stored in `views/` next to the runs. Epoch e of a student uses view
e % V, augmented as it was for the ensemble, so the ensemble does not run in a step. Without augmentation, as
with texts, one view is enough: the student equals that of the normal way, up to the rounding of stored logits.

```console
$ flipguard train --model mlp:hidden=64 --method elodi --set options.members=2 --set options.views=2 \\
    --set recipe.epochs=4 --set recipe.augment=shift-scale-noise --out runs/first
$ flipguard train --model mlp:hidden=64 --method elodi --set options.members=2 --set options.views=2 \\
    --set recipe.epochs=4 --set recipe.augment=shift-scale-noise --set options.alpha=0.5 --out runs/second
```

The second student uses the views of the first. The augmentation seed belongs to the members, so students with any seed
share the views of the same members, for example of those given as `guides`. Stored views take 2 bytes per view, sample
and class: 76 MiB for 8 views of CIFAR-100, 19 GiB for ImageNet, and 0.8 GiB for ImageNet with `views_top=20`. The file is
written in parts and checked when it is opened: after a kill, the next run continues with it, and a damaged part is computed again.
"""


def elodi_price() -> str:
    """Return the text about the cost of ELODI, with the measured numbers."""
    least, most = on_a_gpu()
    price = PRICE.format(
        least=least,
        most=most,
        members=measured("members=4"),
        reuse=measured("reuse=4"),
        views=measured("views=10", "views=5"),
    )
    return price + PAYING_LESS + STORED_VIEWS
