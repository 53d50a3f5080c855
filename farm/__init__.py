"""farm: a device farm for neural networks, over Apache TVM's RPC.

Python programs import the interface with `from farm import Farm`, see `farm.api`. The packages,
from the lowest layer to the highest (CONTRIBUTING.md has all layers):

    types       data types shared by all packages
    stats       statistics of measurements
    processes   processes and threads: start them, end them in time
    rpc         a client of TVM's RPC protocol, without TVM
    sandbox     a process with almost no rights, for models from strangers
    config      devices.toml as a Fleet
    store       artifacts, runs and records on the host
    kernels     TIR kernels written by hand
    importers   models of all formats to TVM modules
    zoo         built-in models
    compiler    TVM modules to linked libraries
    transports  connections to devices
    agent       the native device agent and its builder
    boards      the profile that fits a board, by what it says about itself
    inputs      inputs from users: arrays, images and labels
    data        sets of samples
    quantize    quantization of float models
    executor    measurements over a session with a device
    export      a model as files that run without farm
    cluster     builds on the workers of Dask or Slurm
    pipeline    the jobs of the commands, and their worker tasks
    tracker     TVM's tracker in this process
    lab         the lab server, which leases boards
    lab_page    the lab over HTTP: REST, events, metrics, and a page for people
    lab_client  the client's side of a lab
    api         the interface for Python programs
    dashboard   live display of jobs
    views       tables, reports and JSON documents
    commands    one module per command: parse, call, print, exit

The modules at the root:

    cli                       the command line; turns errors into messages and exit codes
    comparison                comparison of two sets of runs, and steps in a history of runs
    deployments               models installed on devices
    errors                    FarmError and its subclasses, with their exit codes
    formatting                numbers, times and runs as text
    interleaved_measurement   interleaved measurement of several functions
    metrics                   metrics of runs in Prometheus's text format
    npy_header                headers of arrays in numpy's format
    ownership                 checks of who could have written a file; private files
    checked_model_import      import of a model, and the check against its reference
    prompts                   questions to the user on the terminal
    pytest_plugin             the pytest fixture `farm`
    regular_files             refusal of what is no regular file
    sanitize                  removal of control characters from text
    this_machine              architecture and profile of the machine that farm runs on
    time_ledger               seconds by part
    tvm_import_without_torch  import of TVM without torch and, if possible, without its compiler
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.api import Answer as Answer
    from farm.api import Farm as Farm
    from farm.api import Result as Result

__version__ = "0.1.0"

_API = ("Answer", "Farm", "Result")


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use, so that `import farm` alone costs nothing."""
    if name not in _API:
        raise AttributeError(f"module 'farm' has no attribute {name!r}")
    from farm import api

    return getattr(api, name)
