"""page.py FOLDER: serve xprof's page of the profiles in a folder, to this machine only.

FOLDER/address gets the address once the page answers. xprof's own command is not used: it listens on all networks
of the machine, also on a port for its workers, and offers to record other programs.
"""

import sys
from pathlib import Path

from xprof import server


def main(folder):
    context = server.TBContext(folder, server.DataProvider(folder), server.TBContext.Flags(False))
    context.hide_capture_profile_button = True
    plugin = server.ProfilePluginLoader().load(context)
    page = server.wsgi.Server(("127.0.0.1", 0), server.make_wsgi_app(plugin))
    page.prepare()
    new = Path(folder, "new")
    new.write_text("http://{}:{}/".format(*page.bind_addr))
    new.rename(Path(folder, "address"))  # a rename, so that a waiting program reads the whole address
    page.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
