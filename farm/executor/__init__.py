"""Runs an artifact on a device: open a link, push what is not there, load, run, measure. The only user of RPC objects; none leaves it.

Every function here runs in a worker process, with RPC in its main thread, so that it can be killed. Times are the device's own.
"""

from farm.executor.asking import deployments, facts, infer, infer_deployed, roll_back, undeploy
from farm.executor.gpu import open_gpu
from farm.executor.loading import facts_of
from farm.executor.measuring import measure

__all__ = ["deployments", "facts", "facts_of", "infer", "infer_deployed", "measure", "open_gpu", "roll_back", "undeploy"]
