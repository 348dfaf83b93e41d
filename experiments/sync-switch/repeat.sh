#!/bin/sh
# All sweeps of this folder, then its page: experiments/sync-switch/repeat.sh DATA RUNS
#   DATA: folder with cifar-10-batches-py;  RUNS: where records go
set -eu
here=$(dirname "$0")
for sweep in lr lr-seeds share share-low-lr order sixteen sixteen-paper-lr stragglers-trained momentum batch alexnet; do
    raysync sweep "$here/$sweep.yaml" --set "data.data_dir=$1" --set "output=$2"
done
for sweep in slow-links towers stragglers stragglers-towers; do
    raysync sweep "$here/$sweep.yaml" --set "output=$2"
done
python "$here/../labbook.py" --runs "$2"
