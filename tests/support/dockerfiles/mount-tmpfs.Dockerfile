FROM base/box
RUN --mount=type=tmpfs,target=/scratch dd if=/dev/zero of=/scratch/big bs=1024 count=64 2>/dev/null && wc -c < /scratch/big > /size
