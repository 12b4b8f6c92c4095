"""Moving house: threads and memories out of a Keep into a file, out of a file into a Keep, and from one Keep to another.

Everything here is long work (`threadkeep.work`): it may be interrupted between any two steps, and begun again.
"""
