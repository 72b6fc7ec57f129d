"""The reader: decoded data in, batches out, in an order that is a pure function.

`order` and `permutation` say which samples, `index`, `shards` and `mapped` where they lie, `gather`
copies them, `substitute` replaces a damaged one, `threads`, `slots` and `ahead` read ahead, and
`loader` has the `Reader` that ties these up.
For shards in a bucket, `future` says which are needed next, `fetch` brings them, `cache` keeps them
for all processes of the node, and `remote` ties these up.
"""
