"""Search what was said: the messages and the text in the state of threads, by words.

    documents.py  what a thread says: each message and each string value once
    query.py      words and phrases: what matches, its rank, and the snippet
    hits.py       what a search returns, and the best of many hits
    requests.py   what the engine asks of a backend about the search index

A search gives the same hits with an index and without: a backend's index only finds candidates, and `query.py` decides
what matches and in which order. May import `engine.identity`, `engine.history`, `engine.cube`,
`engine.threads`, `engine.log`, and the words of `engine.memories`.
"""
