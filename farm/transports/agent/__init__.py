"""Know the agent's side: validate what an agent returns, and say what its errors mean.

Modules:
    keys                 keys of agents on this machine, in files of their owner
    version              check that the agent has farm's protocol and versions
    answer_validation    validate the documents and numbers that an agent returns
    errors               what an agent's errors mean, by their codes
    legacy_error_texts   the same for agents from before there were codes
    manifest_validation  validate the manifests of releases that an agent returns
"""
