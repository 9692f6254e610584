#!/bin/bash
# Extract one store with an array of Slurm jobs, one part of it each:
#
#     sbatch --array=1-8 extract_array.sh --model gpt2 --dataset sst2 --out /shared/runs/gpt2-sst2
#
# The arguments are those of `probekit extract`. All jobs write into one store, on a file system that all nodes see.
# Slurm sends SIGUSR1 three minutes before the time limit: finished shards stay, the job is requeued, and resumes.
# A part that failed is run again with the number of parts: PARTS=8 sbatch --array=3 extract_array.sh ...
#
#SBATCH --job-name=probekit
#SBATCH --array=1-4
#SBATCH --time=04:00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --requeue
#SBATCH --signal=B:USR1@180
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.log
# For GPUs add: #SBATCH --gpus-per-task=1

set -u
job=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}
cpus=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$cpus

# since Slurm 22.05 srun does not inherit --cpus-per-task, and would bind the step to one core
srun --cpus-per-task="$cpus" probekit extract "$@" --part "$SLURM_ARRAY_TASK_ID/${PARTS:-$SLURM_ARRAY_TASK_MAX}" &
step=$!
trap 'kill -USR1 "$step" 2>/dev/null' USR1  # srun passes it on
trap 'kill -TERM "$step" 2>/dev/null' TERM
while
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null # a signal ends `wait`, not the step
do :; done

# 138: ended by SIGUSR1, with its finished shards on disk. SIGTERM (143) is a cancelled job, or one that Slurm itself
# requeues; any other code is an error, which would come again.
if [ "$code" -eq 138 ]; then
    if [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_RESTARTS:-100}" ]; then
        scontrol requeue "$job"
    else
        echo "not requeued: restarted $SLURM_RESTART_COUNT times already (MAX_RESTARTS)" >&2
    fi
fi
exit "$code"
