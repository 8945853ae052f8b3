"""The mazes compared with Gymnasium-Robotics' PointMaze and D4RL, and data collected in them."""

import contextlib
import io
import os

import numpy as np
import pytest

from ssorl.data.sim.mazes import Walk, collect, next_cells
from ssorl.envs.maze import MIDDLE, layout_of, maze
from ssorl.envs.scores import SCORES

UMAZE = "maze2d-umaze-dense"
MAPS = {
    "maze2d-open-dense": "OPEN",
    UMAZE: "U_MAZE",
    "maze2d-medium-dense": "MEDIUM_MAZE",
    "maze2d-large-dense": "LARGE_MAZE",
}


@pytest.fixture(scope="module")
def robotics():
    with contextlib.redirect_stderr(io.StringIO()):  # suppresses a notice about other environments
        from gymnasium_robotics.envs.maze import maps, point_maze
    return maps, point_maze


def theirs(robotics, name):
    maps, point_maze = robotics
    env = point_maze.PointMazeEnv(maze_map=getattr(maps, MAPS[name]), reward_type="dense")
    os.unlink(env.tmp_xml_file_path)  # the environment does not delete it
    env.reset(seed=0)
    return env


def turn(vectors):
    """Convert D4RL's rows and columns to Gymnasium-Robotics' x (right) and y (up)."""
    return np.stack([vectors[..., 1], -vectors[..., 0]], axis=-1)


def place_there(name, place):
    n_rows, n_columns = layout_of(name).walls.shape
    middle = np.array([(n_rows - 1) / 2, (n_columns - 1) / 2])
    return turn(place - MIDDLE - middle)


# --- the environment


@pytest.mark.parametrize("name", MAPS)
def test_maps_goals_and_horizons_equal_gymnasium_robotics(robotics, name):
    layout = layout_of(name)
    np.testing.assert_array_equal(layout.walls, np.array(getattr(robotics[0], MAPS[name])) == 1)
    goals = {"open": (2, 3), "umaze": (1, 1), "medium": (6, 6), "large": (7, 9)}
    assert tuple(layout.goal) == goals[name.split("-")[1]]
    assert layout.horizon == SCORES[name].horizon


@pytest.mark.parametrize("name", MAPS)
def test_steps_equal_gymnasium_robotics(robotics, name):
    n, rng = 4, np.random.default_rng(0)
    batch, others = maze(name, n, threads=2), [theirs(robotics, name) for _ in range(n)]
    fastest = touched = 0
    for t in range(300):
        if t % 100 == 0:  # bounces amplify rounding errors, so longer rollouts diverge
            obs = batch.reset(rng)
            for i, env in enumerate(others):
                env.goal = place_there(name, batch.layout.goal)
                env.point_env.reset(seed=0)
                env.point_env.set_state(place_there(name, obs[i, :2]), turn(obs[i, 2:]))
        if t % 25 == 0:  # constant forces long enough to reach walls and the speed limit
            act = rng.uniform(-1.5, 1.5, (n, 2)).astype(np.float32)
        ours = batch.step(act)
        for i, env in enumerate(others):
            seen, rew, terminated, truncated, _ = env.step(turn(act[i]))
            want = np.concatenate([place_there(name, ours.obs[i, :2]), turn(ours.obs[i, 2:])])
            np.testing.assert_allclose(want, seen["observation"], rtol=0, atol=1e-9)
            np.testing.assert_allclose(ours.rew[i], rew, rtol=0, atol=1e-9)
            assert not terminated and not truncated and not ours.terminated[i]
            touched += env.point_env.data.ncon > 1  # the floor is one contact
        fastest = max(fastest, np.abs(ours.obs[:, 2:]).max())
    assert fastest > 5 and touched > 20


def test_the_reward_of_a_worked_example():
    env = maze(UMAZE, 3, threads=1)
    still = np.zeros((3, 2))
    env.set_state(np.array([[1.0, 1.0], [3.0, 1.0], [3.0, 2.5]]), still)
    np.testing.assert_allclose(env.step(still).rew, np.exp([0.0, -2.0, -2.5]))
    np.testing.assert_allclose(env.layout.reward(np.array([4.0, 5.0])), np.exp(-5.0))
    env.set_state(np.array([[3.0, 1.0]] * 3), np.array([[0.0, 2.0]] * 3))
    ours = env.step(still)  # the reward depends on the position after the step
    np.testing.assert_allclose(ours.rew, np.exp(-np.hypot(ours.obs[:, 0] - 1, ours.obs[:, 1] - 1)))


@pytest.mark.parametrize("name", MAPS)
def test_the_ball_does_not_pass_walls(name):
    rng, n = np.random.default_rng(0), 256
    env = maze(name, n)
    env.reset(rng)
    walls = env.layout.walls
    for t in range(400):
        if t % 20 == 0:
            act = np.sign(rng.uniform(-1, 1, (n, 2)))
        place = env.step(act).obs[:, :2]
        assert (env.layout.cell_at(place) >= 0).all()
        off = place - MIDDLE - np.round(place - MIDDLE)
        for axis in range(2):  # next to a wall the ball (radius 0.1) stays in its cell, except for a soft bounce
            beside = np.round(place - MIDDLE).astype(int)
            beside[:, axis] += np.sign(off[:, axis]).astype(int)
            assert (np.abs(off[walls[tuple(beside.T)], axis]) < 0.5 - 0.1 + 0.07).all()


def test_walls_have_the_positions_of_d4rl():
    # In D4RL the ball's zero is at 1.2, and walls reach half a cell around whole numbers from 1. So the face of row 0
    # is at 1.5 - 1.2 = 0.3 and that of column 4 at 4.5 - 1.2 = 3.3. The ball stops about 0.1 before a face.
    env = maze(UMAZE, 1, threads=1)
    env.set_state(np.array([[1.0, 3.0]]), np.zeros((1, 2)))
    for _ in range(200):
        obs = env.step(np.array([[-0.2, 0.2]])).obs
    np.testing.assert_allclose(obs, [[0.4, 3.2, 0.0, 0.0]], atol=0.005)


def test_reset_covers_all_free_cells_and_respects_the_mask():
    env, rng = maze(UMAZE, 700, threads=1), np.random.default_rng(0)
    obs = env.reset(rng)
    cells, counts = np.unique(np.round(obs[:, :2]), axis=0, return_counts=True)
    np.testing.assert_array_equal(cells, env.layout.cells)
    assert [1, 1] in cells.tolist() and counts.min() > 60
    away = obs[:, :2] - np.round(obs[:, :2])
    assert 0.099 < np.abs(away).max() <= 0.1
    np.testing.assert_allclose(obs[:, 2:].std(), 0.1, rtol=0.1)
    mask = np.arange(700) < 5
    again = env.reset(rng, mask)
    assert (again[mask] != obs[mask]).all()
    np.testing.assert_array_equal(again[~mask], obs[~mask])


def test_a_restored_state_continues_identically():
    env, rng = maze("maze2d-medium-dense", 8, threads=1), np.random.default_rng(0)
    env.reset(rng)
    acts = np.sign(rng.uniform(-1, 1, (60, 1, 2))).repeat(8, 1)
    for act in acts[:30]:
        obs = env.step(act).obs
    state = env.save()
    want = [env.step(act) for act in acts[30:]]
    np.testing.assert_array_equal(env.load(state), obs)
    for act, step in zip(acts[30:], want, strict=True):
        np.testing.assert_array_equal(env.step(act).obs, step.obs)


@pytest.mark.parametrize("name", [UMAZE, "maze2d-medium-dense"])
def test_a_random_policy_has_the_reference_return(name):
    env, rng = maze(name, 600), np.random.default_rng(0)
    env.reset(rng)
    returns = sum(env.step(rng.uniform(-1, 1, (600, 2))).rew for _ in range(env.horizon))
    error = returns.std() * np.sqrt(1 / 600 + 1 / 100)  # D4RL averaged 100 episodes
    assert abs(returns.mean() - SCORES[name].random) < 3 * error


def test_unknown_mazes_raise():
    with pytest.raises(KeyError, match=r"no maze 'maze2d-tiny'; known: maze2d-open-dense"):
        maze("maze2d-tiny", 1)


# --- the walkers


def test_next_cells_of_a_worked_example():
    layout = layout_of(UMAZE)
    after, number = next_cells(layout), layout.number
    path, cell = [], number[1, 1]
    while cell != number[3, 1]:
        cell = after[number[3, 1], cell]
        path.append(tuple(layout.cells[cell]))
    assert path == [(1, 2), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1)]
    assert after[number[3, 1], number[3, 1]] == number[3, 1]


@pytest.mark.parametrize("name", MAPS)
def test_collected_trajectories_follow_the_dynamics(name):
    seen = []
    data, layout = collect(name, 20_000, seed=0, progress=seen.append), layout_of(name)
    assert data.n_steps - data.lengths[-1] < 20_000 <= data.n_steps
    assert data.lengths.min() >= 10 and data.lengths.max() <= layout.horizon
    assert not data.terminated.any() and data.labelled.all() and np.abs(data.act).max() == 1
    assert (data.meta.env, data.meta.act_low, data.meta.act_range) == (name, (-1.0, -1.0), "declared")
    assert data.meta.expert_return == SCORES[name].expert
    assert sum(seen) == 20_000 and len(seen) > 2

    obs, after = data.obs[data.obs_row], data.obs[data.obs_row + 1]
    assert (layout.cell_at(data.obs[:, :2]) >= 0).all()
    np.testing.assert_allclose(data.rew, layout.reward(after[:, :2]), rtol=1e-5)
    # Positions follow from the speeds after each step, so no trajectory consists of two.
    np.testing.assert_allclose(after[:, :2], obs[:, :2] + 0.01 * after[:, 2:], atol=1e-5)
    # Away from walls the change of speed follows from the action, so inverse dynamics are well defined.
    free = (np.abs(obs[:, :2] - MIDDLE - np.round(obs[:, :2] - MIDDLE)) < 0.3).all(1) & (np.abs(obs[:, 2:]) < 5).all(1)
    change = after[free, 2:] - obs[free, 2:]
    mass = 4 / 3 * np.pi * 0.1**3 * 1000
    np.testing.assert_allclose(change, 0.01 * (100 * data.act[free] - obs[free, 2:]) / (mass + 0.01), atol=1e-4)
    # Trajectories shorter than the horizon end at their target.
    ends = data.obs[data.start[1:] + np.arange(len(data)), :2][data.lengths < layout.horizon]
    assert (np.linalg.norm(ends - np.round(ends), axis=1) < 0.1 + 1e-6).all()


def test_the_seed_determines_the_data_for_any_number_of_threads():
    single, double = (collect(UMAZE, 10_000, 3, threads=n) for n in (1, 2))
    assert single.same(double)
    assert not single.same(collect(UMAZE, 10_000, 4))


def test_trajectories_can_end_at_the_horizon():
    data = collect(UMAZE, 5_000, 0, walk=Walk(cut="horizon"))
    assert (data.lengths == 300).all() and len(data) == 17


def test_returns_are_distributed_as_in_the_paper():
    share_below, spread = {}, {}
    for name in MAPS:
        returns = collect(name, 30_000, 1).normalised_returns()
        share_below[name], spread[name] = (returns < 0).mean(), returns.std()
        if "open" not in name:  # "heavily skewed towards the low return values", "many … below zero"
            centred = returns - returns.mean()
            assert (centred**3).mean() / returns.std() ** 3 > 0.8
            assert share_below[name] > 0.5
    assert spread["maze2d-open-dense"] > 5 * max(spread[name] for name in MAPS if "open" not in name)
    assert 0.1 < share_below["maze2d-open-dense"] < 0.5
