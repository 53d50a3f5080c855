"""Store the state of the lab's server in SQLite or PostgreSQL.

entity_json          leases, boards and events as JSON
lab_database         what is kept, in SQLite or PostgreSQL
lab_database_writer  the thread that keeps it, and what is said only after that
"""
