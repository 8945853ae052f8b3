"""A batch of environments in NumPy: the point mass of ssorl with three times its drag."""

from ssorl.envs.pointmass import PointMass


class HeavyPointMass(PointMass):
    """The point mass in thick air. `ssorl.envs.Env` lists what an environment needs."""

    name = "heavy-pointmass"
    drag = 0.9
