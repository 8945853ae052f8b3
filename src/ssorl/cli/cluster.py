"""Options of `ssorl study run` for a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from ssorl.cli.options import arg, flag


@dataclass(frozen=True)
class RayOptions:
    """Run batches by Ray, on all devices of this machine or of a cluster (docs/clusters.md)."""

    ray: Annotated[bool, flag("use Ray on this machine, and start it if it is not running")] = False
    ray_address: Annotated[str | None, arg("ADDRESS", "use this cluster: HOST:PORT, or auto on its machines")] = None
    ray_gpus: Annotated[float | None, arg("N", "GPUs of each batch", "1 if the cluster has any")] = None
    ray_cpus: Annotated[float, arg("N", "CPU cores of each batch", 1)] = 1.0
    ray_share: Annotated[
        str | None, arg("URL", "exchange results by this fsspec path, such as s3://…, without a shared folder")
    ] = None

    @contextmanager
    def runner(self) -> Iterator[Callable[..., Any]]:
        """Yield the function that runs cells: on a cluster if the user asked for one, else in this process."""
        from ssorl.study import scheduler

        if self == RayOptions():
            yield scheduler.run
            return
        import jax

        from ssorl.study.ray_cluster import Cluster, connected, run

        jax.config.update("jax_platforms", "cpu")  # this process only waits: the devices are for the batches
        with connected(self.ray_address):
            yield partial(run, cluster=Cluster(self.ray_address, self.ray_gpus, self.ray_cpus, self.ray_share))
