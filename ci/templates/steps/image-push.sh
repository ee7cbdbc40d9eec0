# Each wheel must be what its record says, or nothing is pushed.
set -- "$TFDOCK_WHEELHOUSE"/*.whl
if [ -e "$1" ]; then
  tfdock image push "$@" "$TFDOCK_REGISTRY"
fi
