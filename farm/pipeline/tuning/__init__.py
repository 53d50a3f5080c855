"""`farm tune`: search for the best configuration of each kernel on devices.

tune    the command's pipeline
loop    build batches of variants ahead and measure them
search  decide what to try next
"""
