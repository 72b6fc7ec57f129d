"""The files that hold samples: WebDataset tars and decoded Arrow shards."""
