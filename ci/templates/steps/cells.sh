set --
for cell in $TFDOCK_CELLS; do
  set -- "$@" --only "$cell"
done
