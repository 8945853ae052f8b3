"""An agent, a dataset format, an inverse dynamics model and an environment for ssorl."""
