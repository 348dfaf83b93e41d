#!/bin/sh
# All sweeps of this folder, then its page: experiments/lagtuner/repeat.sh DATA RUNS
#   DATA: folder with cifar-10-batches-py;  RUNS: where records go
set -eu
here=$(dirname "$0")
for sweep in lr-two-gpus lr-four-equal lr-alexnet table-2 alexnet figure-2 stragglers; do
    raysync sweep "$here/$sweep.yaml" --set "data.data_dir=$1" --set "output=$2"
done
for sweep in figure-2-pace stragglers-two-gpus lead; do
    raysync sweep "$here/$sweep.yaml" --set "output=$2"
done
python "$here/../labbook.py" --runs "$2"
