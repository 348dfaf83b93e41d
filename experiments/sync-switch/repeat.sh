#!/bin/sh
# All runs of this folder, then its pages: experiments/sync-switch/repeat.sh DATA RUNS
#   DATA: folder with FashionMNIST;  RUNS: where records go
set -eu
here=$(dirname "$0")
for sweep in batch slow-links towers stragglers stragglers-towers; do
    raysync sweep "$here/$sweep.yaml" --set "output=$2"
done
python "$here/windows.py" --data "$1"
python "$here/../labbook.py" --runs "$2"
