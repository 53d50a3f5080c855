"""Boards that are reached by SSH.

transport                    open a session with the agent on a board
channel_connection           the connection of a session over the channel of an agent
connect                      log in through all hops
auth                         authenticate: keys, server prompts, passwords
login_keys                   find the keys that may be used
known_hosts                  check host keys
config                       read ~/.ssh/config into hops
config_include               resolve Include in ~/.ssh/config
tuned_paramiko_transport     paramiko's transport with faster settings
board                        run scripts on a board, which install and start the agent
systemd_service              install the agent as a service of systemd
systemd_tunnel               install a tunnel to a lab as a service, for a board behind NAT
install_and_removal_scripts  shell scripts for that
connectivity_checks          check a connection layer by layer, for `farm doctor`
upload                       upload large files on a channel of their own
errors                       translate errors of paramiko into farm's
"""
