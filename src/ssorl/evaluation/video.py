"""A film of one evaluated episode: its states are kept while it is played and drawn afterwards.

MuJoCo is asked to draw in a process of its own, once for each way to OpenGL without a screen, since a broken driver
ends the process that calls it.
"""

# MuJoCo is a compiled module without stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ssorl.utils.errors import SsorlError
from ssorl.utils.files import atomic

WIDTH, HEIGHT = 320, 240
FPS = 25  # frames a second at most, and time runs as it does
WAYS = ("egl", "osmesa")  # values of MUJOCO_GL, which comes first where it is set


class Film:
    """Given to `evaluate` as its `watch`; what cannot become a film is refused when it is made."""

    def __init__(self, path: Path | str, env: str) -> None:
        self.path, self.env, self.places = Path(path), env, []
        self.seconds = 0.0  # a step
        if self.path.suffix not in (".gif", ".mp4"):
            raise SsorlError(f"{path}: end a video's name in .gif or .mp4")
        if self.path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
            raise SsorlError(f"{path}: an .mp4 needs the program ffmpeg, which is not here; name a .gif instead")

    def __call__(self, sim: Any) -> None:
        """Keep where everything is in the first environment."""
        self.places.append(_place(sim))
        self.seconds = _seconds(sim)

    def write(self, length: int) -> Path:
        """Draw the first `length` steps."""
        every = max(1, round(1 / (FPS * self.seconds)))
        places, fps = np.stack(self.places[: length + 1 : every]), 1 / (self.seconds * every)
        with atomic(self.path) as fresh, tempfile.TemporaryDirectory() as folder:
            states = Path(folder) / "states.npz"
            np.savez(states, allow_pickle=False, env=self.env, places=places, fps=fps)
            failed, ways = [], [way for way in (os.environ.get("MUJOCO_GL"), *WAYS) if way]
            for way in dict.fromkeys(ways):
                call = [sys.executable, "-m", "ssorl.evaluation.video", str(states), str(fresh)]
                done = subprocess.run(call, env={**os.environ, "MUJOCO_GL": way}, capture_output=True, text=True)
                if done.returncode == 0 and fresh.exists():
                    return self.path
                lines = done.stderr.strip().splitlines()
                failed.append(f"{way}: {lines[-1][:120] if lines else f'ended with {done.returncode}'}")
            raise SsorlError(
                f"{self.path}: MuJoCo cannot draw here ({'; '.join(failed)}); install libegl1 or libosmesa6 "
                "or leave the video out"
            )


def _place(sim: Any) -> np.ndarray:
    """The coordinates of the first environment."""
    if hasattr(sim, "_qpos"):
        return sim._qpos[0].copy()
    if sim.name == "pointmass":
        return sim.state[0].copy()
    raise SsorlError(f"no video can be drawn of {sim.name}; of hopper, walker2d, halfcheetah and mazes it can")


def _seconds(sim: Any) -> float:
    return float(getattr(sim, "_dt", None) or getattr(sim, "dt", None) or 0.01)  # 0.01: the mazes' ball


# In the other process --------------------------------------------------------------------------------------


def draw(states: Path, out: Path) -> None:
    """From kept states to a file."""
    with np.load(states, allow_pickle=False) as f:
        env, places, fps = str(f["env"]), f["places"], float(f["fps"])
    frames = _disc(places) if env == "pointmass" else _mujoco(env, places)
    (_gif if out.suffix == ".gif" else _mp4)(frames, out, fps)


def _mujoco(env: str, places: np.ndarray) -> Iterator[np.ndarray]:
    import mujoco

    from ssorl import envs
    from ssorl.envs.locomotion import BY_ID, model_path, quiet_model
    from ssorl.envs.maze import LAYOUTS, model_of

    spec, camera, goal = envs.SPECS.get(env) or BY_ID.get(env), "track", None
    if spec is not None:
        model = quiet_model(model_path(spec.xml))
    else:
        model, camera = model_of(LAYOUTS[env]), mujoco.MjvCamera()
        goal, size = LAYOUTS[env].goal, LAYOUTS[env].walls.shape
        camera.lookat[:] = (size[0] / 2 - 0.7, size[1] / 2 - 0.7, 0)
        camera.distance, camera.elevation, camera.azimuth = 1.3 * max(size), -90, 180  # as its map is written
    data = mujoco.MjData(model)
    with mujoco.Renderer(model, HEIGHT, WIDTH) as renderer:
        for place in places:
            data.qpos[:] = place
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            # Most of the time without a graphics card goes into these two.
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            if goal is not None:
                mark, scene = (mujoco.mjtGeom.mjGEOM_SPHERE, [0.15, 0, 0], [*goal, 0]), renderer.scene
                mujoco.mjv_initGeom(scene.geoms[scene.ngeom], *mark, np.eye(3).ravel(), [1, 0.2, 0.2, 0.7])
                scene.ngeom += 1
            yield renderer.render()


def _disc(places: np.ndarray) -> Iterator[np.ndarray]:
    """The point mass and its goal in the arena of 4 m, with Pillow alone."""
    from PIL import Image, ImageDraw

    for x, y in places[:, :2]:
        image = Image.new("RGB", (WIDTH, HEIGHT), "white")
        canvas, scale = ImageDraw.Draw(image), HEIGHT / 4
        middle, point = (WIDTH / 2, HEIGHT / 2), (WIDTH / 2 + scale * x, HEIGHT / 2 - scale * y)
        canvas.rectangle((middle[0] - HEIGHT / 2, 0, middle[0] + HEIGHT / 2, HEIGHT - 1), outline="black")
        canvas.line((middle[0] - 6, middle[1], middle[0] + 6, middle[1]), fill="green", width=2)
        canvas.line((middle[0], middle[1] - 6, middle[0], middle[1] + 6), fill="green", width=2)
        canvas.ellipse((point[0] - 7, point[1] - 7, point[0] + 7, point[1] + 7), fill="navy")
        yield np.asarray(image)


def _gif(frames: Iterator[np.ndarray], out: Path, fps: float) -> None:
    from PIL import Image

    first, *rest = (Image.fromarray(frame) for frame in frames)
    first.save(out, format="GIF", save_all=True, append_images=rest, duration=round(1000 / fps), loop=0)


def _mp4(frames: Iterator[np.ndarray], out: Path, fps: float) -> None:
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(fps), "-i", "-"]
    call = ["ffmpeg", "-y", "-loglevel", "error", *source, "-pix_fmt", "yuv420p", str(out)]
    with subprocess.Popen(call, stdin=subprocess.PIPE) as ffmpeg:
        assert ffmpeg.stdin is not None
        for frame in frames:
            ffmpeg.stdin.write(frame.tobytes())
    if ffmpeg.returncode:
        sys.exit(ffmpeg.returncode)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
