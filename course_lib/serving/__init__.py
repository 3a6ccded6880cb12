"""What lesson 14 serves: requests that come and go, one token at a time, with their keys and values in pages.

paged_cache  which sequence has which pages: shared pages, copy on write
model        a small language model, character by character, and its weights
server       runs the requests in one batch
"""
