"""One run in one folder: `ssorl run`."""
