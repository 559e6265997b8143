#!/bin/bash
# A comment.
#SBATCH --job-name="a b" --nodes=2-3 # and another one
#SBATCH -n8 --gres=gpu:a100:4
#SBATCH --time 1-2:30 --mem=4G --nice=-5
#SBATCH -o %x-%j.out --export=ALL,A='x,y' --partition=gpu

srun true
#SBATCH --after
