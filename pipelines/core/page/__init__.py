"""The report page of a dataset: what is shown, as charts and thumbnails in one HTML file."""
