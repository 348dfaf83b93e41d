#!/bin/sh
# All of this folder, then its page: experiments/decoupled/repeat.sh DATA RUNS
#   DATA: folder with cifar-10-batches-py;  RUNS: where records go
set -eu
here=$(dirname "$0")
for sweep in lr factors resnet20 speed-up; do
    raysync sweep "$here/$sweep.yaml" --set "data.data_dir=$1" --set "output=$2"
done
raysync compare "$here/overlap.yaml" --set "data.data_dir=$1" --set "output=$2"
raysync compare "$here/overlap-emulated.yaml" --set "output=$2"
python "$here/overlap.py" "$2"
python "$here/gradient_norm.py"
python "$here/../labbook.py" --runs "$2"
