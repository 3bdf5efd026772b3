#!/bin/bash
# Open MPI 4 and 5. MPICH and Intel MPI: -genvlist NAME,NAME in the place of each -x NAME, -hosts in that of --host, and
# no --bind-to and --wdir. It is not started again by itself: after 75 or 143 start it once more.
set -eu
export A='it'"'"'s $HOME'
export MASTER_ADDR=node1
export MASTER_PORT=29500
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
exec mpirun -n 4 --host node1:2,node2:2 --bind-to none --wdir '/home/me/it'"'"'s a folder' -x A -x MASTER_ADDR -x MASTER_PORT -x NCCL_DEBUG jzero train run.json --resume auto
