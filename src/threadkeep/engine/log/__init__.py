"""The item log: how values become stored bytes and come back.

A value is split into parts (`codec`), parts become compressed, checksummed items (`itemlog`), and rows refer to them
(`records`). Reading goes through the type gate (`type_gate`). May import nothing of threadkeep but `errors`,
`engine.identity` and its own modules.
"""
