"""What any stage may import: parameters, the stage runner, buckets, records, storage, the cluster."""
