# What earlier jobs of tfdock have left on a machine that stays.
tfdock cache prune --images || echo "nothing was removed"
df -h .
