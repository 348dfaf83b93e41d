#!/bin/sh
# All runs of this folder, then its pages: experiments/lagtuner/repeat.sh DATA RUNS
#   DATA: folder with cifar-10-batches-py and FashionMNIST;  RUNS: where records go
set -eu
here=$(dirname "$0")
for sweep in figure-2-pace stragglers-two-gpus lead; do
    raysync sweep "$here/$sweep.yaml" --set "output=$2"
done
python "$here/bounds.py" --data "$1"
python "$here/drops.py" --data "$1"
python "$here/../labbook.py" --runs "$2"
