"""Decide which lease gets which boards, and when. It is pure and synchronous, and has no clock.

queue_order        whose turn it is: classes, aging, use by owner; when a lease gets boards
reservations       which boards reservations will have, and what may be lent until then
reserved_share     how much of a kind's boards one owner has reserved within some hours
scheduler_changes  what a step changes, and what an earlier server left
registry           the boards and kinds
promises           what a reservation is promised, and what may be lent beside it
scheduler          who is given which board now, and for how long: pure and synchronous
"""
