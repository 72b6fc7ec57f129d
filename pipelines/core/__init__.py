"""What any stage may import: parameters, the runner, buckets, records, storage, the cluster."""
