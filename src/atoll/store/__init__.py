"""The only SQL: the database, its tables, and the queries by noun.

Every query is a plain function over a `Transaction`. A transaction runs as one function in a database thread
(`Database.write`, `Database.read`), so none can be held across a driver call: there is nothing in it to await.
"""
