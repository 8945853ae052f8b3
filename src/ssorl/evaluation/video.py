"""Video of one evaluation episode: its states are recorded during the rollout and rendered afterwards.

MuJoCo renders in a separate process, because a broken OpenGL driver would end this process. The ways to render without
a screen (EGL, OSMesa) are tried in turn.
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
FPS = 25  # at most this many frames a second; the video runs in real time
BACKENDS = ("egl", "osmesa")  # values of MUJOCO_GL to try, after the user's own value


class Film:
    """A recorder for `evaluate(watch=...)` that writes a video of the first environment."""

    def __init__(self, path: Path | str, env: str) -> None:
        """Check that a video can be written.

        Args:
            path: the video, a .gif or .mp4 file.
            env: name of the environment.

        Raises:
            SsorlError: the name has another suffix, or ffmpeg is missing.
        """
        self.path, self.env, self.states = Path(path), env, []
        self.seconds_per_step = 0.0
        if self.path.suffix not in (".gif", ".mp4"):
            raise SsorlError(f"{path}: is not a name of a video; name a file that ends in .gif or .mp4")
        if self.path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
            raise SsorlError(f"{path}: an .mp4 needs the program ffmpeg, which is not installed; name a .gif instead")

    def __call__(self, sim: Any) -> None:
        """Record the state of the first environment."""
        self.states.append(_state(sim))
        self.seconds_per_step = _seconds_per_step(sim)

    def write(self, length: int) -> Path:
        """Render the first steps and return the path of the video.

        Args:
            length: number of steps.

        Raises:
            SsorlError: MuJoCo cannot render on this machine, or the file cannot be written.
        """
        every = max(1, round(1 / (FPS * self.seconds_per_step)))
        states, fps = np.stack(self.states[: length + 1 : every]), 1 / (self.seconds_per_step * every)
        with atomic(self.path) as fresh, tempfile.TemporaryDirectory() as folder:
            states_file = Path(folder) / "states.npz"
            np.savez(states_file, allow_pickle=False, env=self.env, states=states, fps=fps)
            failed, backends = [], [name for name in (os.environ.get("MUJOCO_GL"), *BACKENDS) if name]
            for backend in dict.fromkeys(backends):
                call = [sys.executable, "-m", "ssorl.evaluation.video", str(states_file), str(fresh)]
                done = subprocess.run(call, env={**os.environ, "MUJOCO_GL": backend}, capture_output=True, text=True)
                if done.returncode == 0 and fresh.exists():
                    return self.path
                lines = done.stderr.strip().splitlines()
                failed.append(f"{backend}: {lines[-1][:120] if lines else f'exit code {done.returncode}'}")
            raise SsorlError(
                f"{self.path}: MuJoCo cannot render here ({'; '.join(failed)}); install libegl1 or libosmesa6 "
                "or leave out --video"
            )


def _state(sim: Any) -> np.ndarray:
    """Return the coordinates of the first environment."""
    if hasattr(sim, "_qpos"):
        return sim._qpos[0].copy()
    if sim.name == "pointmass":
        return sim.state[0].copy()
    raise SsorlError(f"{sim.name} cannot be rendered; use hopper, walker2d, halfcheetah, a maze or pointmass")


def _seconds_per_step(sim: Any) -> float:
    return float(getattr(sim, "_dt", None) or getattr(sim, "dt", None) or 0.01)  # 0.01: the mazes


# In the separate process -----------------------------------------------------------------------------------


def render(states_file: Path, out: Path) -> None:
    """Render recorded states.

    Args:
        states_file: the `.npz` that `Film.write` wrote.
        out: the video.
    """
    with np.load(states_file, allow_pickle=False) as f:
        env, states, fps = str(f["env"]), f["states"], float(f["fps"])
    frames = _pointmass(states) if env == "pointmass" else _mujoco(env, states)
    (_gif if out.suffix == ".gif" else _mp4)(frames, out, fps)


def _mujoco(env: str, states: np.ndarray) -> Iterator[np.ndarray]:
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
        camera.distance, camera.elevation, camera.azimuth = 1.3 * max(size), -90, 180  # oriented as in `Layout.rows`
    data = mujoco.MjData(model)
    with mujoco.Renderer(model, HEIGHT, WIDTH) as renderer:
        for state in states:
            data.qpos[:] = state
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            # Without a GPU, shadows and reflections take most of the time.
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            if goal is not None:
                mark, scene = (mujoco.mjtGeom.mjGEOM_SPHERE, [0.15, 0, 0], [*goal, 0]), renderer.scene
                mujoco.mjv_initGeom(scene.geoms[scene.ngeom], *mark, np.eye(3).ravel(), [1, 0.2, 0.2, 0.7])
                scene.ngeom += 1
            yield renderer.render()


def _pointmass(states: np.ndarray) -> Iterator[np.ndarray]:
    """Draw the point mass and its goal in the arena of 4 m by 4 m, with Pillow."""
    from PIL import Image, ImageDraw

    for x, y in states[:, :2]:
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
    render(Path(sys.argv[1]), Path(sys.argv[2]))
