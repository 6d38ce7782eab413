"""Prefill/decode disaggregation: a master that clients ask, and nodes that compute one half each.

The nodes register at the master over one connection each, on which everything about requests is said. The KV
goes from node to node over a connection of its own, and the decode node computes on from what arrives there:
what is damaged on the way changes the answer.
"""
