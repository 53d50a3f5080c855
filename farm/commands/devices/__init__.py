"""Commands of the group "Devices" of `farm --help`.

Modules:
    devices        list the devices, and ask whether they are there
    add            add and remove: find out what a board is, write it into devices.toml
    doctor         check what stands between here and a device, layer by layer
    doctor_output  shared by doctor and provision: findings as lines and JSON
    provision      install the agent on a board as a service
    deployments    deployments, rollback and undeploy
"""
