python3 -m venv "$TFDOCK_TOOLS"
. "$TFDOCK_TOOLS/bin/activate"
sh -euc "$TFDOCK_INSTALL"
tfdock --version
