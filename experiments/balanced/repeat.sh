#!/bin/sh
# All runs of this folder, then its page: experiments/balanced/repeat.sh DATA RUNS
#   DATA: folder with FashionMNIST;  RUNS: where records go
set -eu
here=$(dirname "$0")
python "$here/measure.py" pre-study "$1" "$2"
python "$here/measure.py" compare "$1" "$2"
python "$here/measure.py" write "$2"
python "$here/timing.py" "$2"
python "$here/on_ray.py" "$1" "$2"
python "$here/measure.py" draw
python "$here/../labbook.py"
