"""Run builds on a device: open a session, upload what is missing, load, run and measure.

    loading                   connect, upload and load a model; retry when the connection breaks
    batches                   many samples, several of them a call
    threads                   the threads and cores of a session
    session_gpu               open the GPU of a session, and explain why it cannot be used
    measuring                 one job: answer, latency, accuracy on labelled samples
    inference_and_deployment  one inference, deployments
    accuracy                  predictions for many samples, on a device or by the reference engine
    compare_builds            two builds interleaved
    engine_comparison         farm's build and other engines interleaved
    other_engines             ONNX Runtime, PyTorch and LiteRT in this process
    kernel_bisect             each kernel of a build compared with a plain loop nest
    profiling                 recorded inferences, kernel by kernel
    profile_records           decode the agent's profiler records
    roofline                  measure a device's peak arithmetic and memory rates
    tuning                    variants of kernels interleaved

Only this package uses RPC objects, and it returns none. Its functions run in worker processes with
RPC in the main thread, so that they can be killed. Times are by the device's clock.
"""

from farm.executor.inference_and_deployment import (
    infer,
    infer_deployed,
    list_deployments,
    roll_back_deployment,
    undeploy,
)
from farm.executor.loading import read_device_facts
from farm.executor.measuring import measure_job
from farm.executor.session_gpu import use_gpu_in_session

__all__ = [
    "infer",
    "infer_deployed",
    "list_deployments",
    "measure_job",
    "read_device_facts",
    "roll_back_deployment",
    "undeploy",
    "use_gpu_in_session",
]
