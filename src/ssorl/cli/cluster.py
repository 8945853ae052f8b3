"""Options of `ssorl study run` for a Ray cluster."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from ssorl.cli.options import arg


@dataclass(frozen=True)
class OnRay:
    """Batches by Ray, on all devices of this machine or of a cluster: docs/clusters.md."""

    ray: Annotated[bool, arg("", "on the Ray of this machine, which is started if there is none")] = False
    ray_address: Annotated[str | None, arg("ADDRESS", "on this cluster: HOST:PORT, or auto on one of its machines")] = (
        None
    )
    ray_gpus: Annotated[float | None, arg("N", "for each batch (1 if the cluster has any)")] = None
    ray_cpus: Annotated[float, arg("N", "for each batch (1)")] = 1.0
    ray_share: Annotated[
        str | None, arg("URL", "results go by this fsspec path, s3://… say, where machines share no folder")
    ] = None

    @contextmanager
    def runner(self):
        """With what runs cells: on a cluster if one was asked for, else here."""
        from ssorl.study import scheduler

        if self == OnRay():
            yield scheduler.run
            return
        import jax

        from ssorl.study.ray_cluster import Cluster, connected, run

        jax.config.update("jax_platforms", "cpu")  # this process only waits: devices are for the tasks
        with connected(self.ray_address):
            yield partial(run, cluster=Cluster(self.ray_address, self.ray_gpus, self.ray_cpus, self.ray_share))
