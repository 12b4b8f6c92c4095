"""Sources: what other savers, stores and checkpointers hold. One file each; they read rows and change nothing.

    detect.py             what a path, a URL or an object is
    source.py             what every source yields
    langgraph_*.py        savers and stores of LangGraph; `checkpoint_bytes.py` reads their stored checkpoints
    cubeloop_*.py         checkpointers of CubeLoop and CubePi
    sqlite_file.py, postgres_server.py    read-only connections

Values stay bytes, and no code that a row names is run. A source blocks, so its methods are called in a `work.Aside`.
Drivers are imported here only, on use. May import the engine, `errors`, `portable.files` and `result`.
"""
