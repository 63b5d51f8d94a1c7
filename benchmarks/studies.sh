#!/bin/sh
# The studies on one GPU, as most of their committed rows were made (each names its command).
#
#   benchmarks/studies.sh OUT DATA [MODEL]
#
# OUT is where runs and results go, DATA has cifar10.npz, cifar100.npz and the folder agnews, and MODEL is a folder with
# a small pretrained text model; without it the study of texts is left out. What is finished is not trained again.
# churn.table2 is run at both scales of CIFAR, the other churn tables at cifar10.
#
#   SEEDS=2 FIRST=3 benchmarks/studies.sh …   two more seeds; results of the same settings in OUT/results become one with them
#   ONLY="elodi.table6 elodi.table4" …        some of the studies
#
# Let the kernels of several processes run side by side: start NVIDIA's MPS before, `nvidia-cuda-mps-control -d`.
set -u
out=$1 data=$2 model=${3:-}
all="elodi.table6 elodi.table5 elodi.table1 elodi.table3 elodi.table7 elodi.table10 elodi.table11 elodi.figure2
  elodi.figure6 pct.table2a pct.table3 pct.table4a pct.table5a pct.table5b pct.table6 pct.table7 elodi.table4
  churn.table1 churn.table2 churn.table3 churn.table4 churn.table7"
of_cifar100= of_cifar10= of_both= of_main= of_agnews=
for study in ${ONLY:-$all}; do
  case $study in
    elodi.table4) of_agnews=$study ;;
    elodi.table1) of_main=$study ;;
    churn.table2) of_cifar10="$of_cifar10 $study" of_both=$study ;;
    churn.*) of_cifar10="$of_cifar10 $study" ;;
    *) of_cifar100="$of_cifar100 $study" ;;
  esac
done
failed=0
run() {
  flipguard study run "$@" --seeds "${SEEDS:-3}" --first-seed "${FIRST:-0}" --device cuda \
    --processes "${PROCESSES:-14}" --fuse off --set data_root="$data" --out "$out" || failed=1
}
[ -z "$of_cifar100" ] || run $of_cifar100 --scale cifar100 --set options.elodi.views=8 --set machine.compile=parts
[ -z "$of_main" ] || run $of_main --scale cifar100 --set machine.compile=parts --set options.elodi.views=16
[ -z "$of_both" ] || run $of_both --scale cifar100 --set machine.compile=parts
[ -z "$of_agnews" ] || [ -z "$model" ] || run $of_agnews --scale agnews --set model="$model" --set options.elodi.views=1
[ -z "$of_cifar10" ] || run $of_cifar10 --scale cifar10 --set machine.compile=parts
exit $failed
