"""Tasks for the workers of a cluster: what travels there, what they do, and what comes back.

    task_transfer      run a task on a worker in a process of its own; archives of folders of the
                       store
    imports            import models, with their references
    builds             build imported models
    tuning_candidates  build the candidates of a search

A worker shares no files with this machine. A request names what the worker may have already by its
digest; a worker that does not have it says so, and gets it with the next request.
"""
