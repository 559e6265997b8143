#!/bin/sh
#SBATCH --comment=a\"b"c \' d"'e"f'#g
#SBATCH --gpus=8 --gpus-per-task=2 --mem-per-gpu=1G --cpus-per-gpu=3
