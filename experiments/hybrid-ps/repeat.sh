#!/bin/sh
# All sweeps of this folder, then its pages: experiments/hybrid-ps/repeat.sh DATA RUNS
#   DATA: folder with MNIST, cifar-10-batches-py and FashionMNIST;  RUNS: where records go
set -eu
here=$(dirname "$0")
for table in 4 7 8 5 9 10 6 11 12 6-frozen 6-300; do
    raysync sweep "$here/table-$table.yaml" --set "data.data_dir=$1" --set "output=$2"
done
python "$here/../labbook.py" --runs "$2"
