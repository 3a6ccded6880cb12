"""What lesson 14 serves: requests that come and go, one token at a time, with their keys and values in pages.

paged_cache  which sequence has which pages: shared pages, copy on write
model        a small language model, character by character, and its weights
training     a step, and many of them, on a text (lesson 17)
server       runs the requests in one batch
"""
