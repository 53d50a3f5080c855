"""The client's side of a lab: what its control socket is asked, here or through the door.

control_client  a connection, by lines of JSON
leasing         a lease: asked for, waited for, kept alive, given back
"""
