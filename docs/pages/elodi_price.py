"""What the card of ELODI says of its price, with what was measured."""

from __future__ import annotations

from pages.cheaper_ways import measured
from pages.ensembles import on_a_gpu

PRICE = """
### What it costs, and how to pay less

With m members the price is that of m + 1 trainings, and m forward passes at every step of the student: a forward pass is
about a third of a training step, so eight members, written plainly, are nearly twelve trainings. On a GPU flipguard makes
{least} to {most} of them, with `machine.compile=parts`
and nothing given up but rounding ([step by step](results/ensembles.md)). These options lower the price further. Each changes
what the student follows, but for `--fuse`, so keep the control beside it.

| option | what is saved | what it gives up | measured against eight members |
|---|---|---|---|
| `members=4` | half of the members, and of their forward passes | an ensemble of fewer varies more from seed to seed. Try this first: the members stay finished, and independent of each other | {members} |
| `reuse=4` | the training of four members, update after update | an ensemble of its own: it is partly that of the model before | {reuse} |
| [`views=10`](#stored-views), or how many there are epochs for | all forward passes but so many a sample, once for all students | fresh augmentations in every epoch | {views} |
| `--fuse auto`, as it is | time on a GPU that a single member does not fill: they are one network; on a CPU they train side by side | nothing, to rounding | |

NFR is the negative flip rate after an old model that ELODI trained too; more of it is worse, and so is more error. MNIST-1D
is of ten seeds and 100 epochs, CIFAR-100 of three seeds and 20 epochs. What it is on your task only your task says:
[all that was measured](results/cheaper.md).
"""
PAYING_LESS = """

**In a chain of updates** `reuse=n` takes n of the members over from the ensemble of the one `--old`, and trains only the
others.

```console
$ flipguard train --method elodi --set options.members=4 --set recipe.epochs=3 --out runs/v1
$ flipguard train --method elodi --set options.members=4 --set options.reuse=2 --old runs/v1 --seed 2 \\
    --set recipe.epochs=3 --out runs/v2
```

Members that are taken over stay as they are. They must know the same classes, but may be of the old architecture, and may
have seen less data: the student is then drawn to a partly older ensemble, so expect it to stay nearer to old, and to gain
less from what is new. `run.json` lists all members, the new ones first; `reuse` takes the first of that list, so that with
up to half of the members reused none serves in more than two updates. Runs and their members are moved together: the list
is of relative paths.
"""
STORED_VIEWS = """
### Stored views

At every step the student asks the whole ensemble about its augmented inputs. With `views=V` the ensemble is asked V times
a sample instead, once for all students: what it says goes to `views/` beside the runs, and epoch e of a student shows view
e % V, augmented as it was for the ensemble. A step then asks no ensemble. Where nothing is augmented, as
with texts, one view says all: the student is that of the ensemble asked at every step, up to the rounding of stored logits.

```console
$ flipguard train --model mlp:hidden=64 --method elodi --set options.members=2 --set options.views=2 \\
    --set recipe.epochs=4 --set recipe.augment=shift-scale-noise --out runs/first
$ flipguard train --model mlp:hidden=64 --method elodi --set options.members=2 --set options.views=2 \\
    --set recipe.epochs=4 --set recipe.augment=shift-scale-noise --set options.alpha=0.5 --out runs/second
```

The second student finds the views of the first. The seed of the augmentation is the members' own: students of any seed
share the views of the same members, for instance of those that are given as `guides`. A table takes 2 bytes a view, sample
and class: 8 views of CIFAR-100 76 MiB, of ImageNet 19 GiB, and 0.8 GiB with `views_top=20`. It is written part by part and
checked when it is opened: a run that was killed goes on with it, and a damaged part is computed again.
"""


def elodi_price() -> str:
    """What is to be known of the price of ELODI, with what was measured."""
    least, most = on_a_gpu()
    price = PRICE.format(
        least=least,
        most=most,
        members=measured("members=4"),
        reuse=measured("reuse=4"),
        views=measured("views=10", "views=5"),
    )
    return price + PAYING_LESS + STORED_VIEWS
