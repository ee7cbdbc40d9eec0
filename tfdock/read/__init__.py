"""Read: text becomes frozen values. Pure; no file, clock, process or network is touched."""
