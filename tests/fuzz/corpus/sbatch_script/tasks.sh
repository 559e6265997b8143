#!/bin/sh
#SBATCH --ntasks-per-node=4 -N2 -c3
#SBATCH --mem-per-cpu=512M --open-mode=append -D /tmp
#SBATCH --gpus-per-node=8 --priority=7 --mincpus=40 --exclusive
