"""The reader: decoded data in, batches out, in an order that is a pure function.

`order` and `permutation` say which samples, `index`, `shards` and `mapped` where they lie, `gather`
copies them, `substitute` replaces a damaged one, `readahead` has the kernel bring what is next, and
`source` ties these up. `threads`, `slots` and
`ahead` read ahead; `loader` has the `Reader` of one dataset, `mixture` that of several by weight.
For shards in a bucket, `future` says which are needed next, `fetch` brings them, `cache` keeps them
for all processes of the node, and `remote` ties these up. `bench` says what bounds the reading of a
dataset on this machine, beside the ceilings that `ceiling` measures.
"""
