python3 -m venv "$TFDOCK_TOOLS"
. "$TFDOCK_TOOLS/bin/activate"
# The machine's cache of packages holds what other jobs fetched.
PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 sh -euc "$TFDOCK_INSTALL"
tfdock --version
